"""Preparing a module for training on several ranks."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

from torch import nn

from maskgrad.distributed.agreement import Postponed, check_consistent, shown
from maskgrad.distributed.data_parallel import DataParallel
from maskgrad.distributed.partition import ParameterPartition, partition
from maskgrad.distributed.process_group import ProcessGroup

__all__ = ["prepare"]


def prepare(
    module: nn.Module,
    group: Any = None,
    *,
    sparse: Iterable[str] = (),
    init_sync: bool = True,
    timeout: datetime.timedelta | None = None,
    **ddp_options: Any,
) -> DataParallel:
    """Prepare a module for training on several ranks, equivalent to one process on the joint batch, for any gradients.

    Args:
        module: any module, including compiled ones, tied weights, and modules whose dense part was sharded with
            ``fully_shard(module, ignored_params=...)``.
        group: a process group of any backend; None: the default one.
        sparse: names of parameters or submodules whose gradients are exchanged depending on their actual kind. Those of
            layers with ``sparse=True`` and of classes outside ``torch.nn`` always are.
        init_sync: broadcast the parameters and buffers of rank 0.
        timeout: how long an exchange waits for a rank; None: that of ``init_process_group(timeout=…)``.
        ddp_options: for the dense part, such as ``find_unused_parameters=True``, ``static_graph=True``,
            ``gradient_as_bucket_view=True``, ``device_ids=[...]``, ``bucket_cap_mb=...``.

    Returns:
        A module that is called like ``module``, which is its attribute ``module``. After ``backward()`` gradients are
        averages over the ranks, in ``.grad`` or attached, as by :func:`maskgrad.distributed.all_reduce_gradients`: a
        mean loss over equal numbers of samples has the gradient of one process; for masked losses see
        :func:`maskgrad.distributed.global_losses`. Optimizers, ``mg.amp.GradScaler`` and clipping work unchanged:
        gradients are equal bit for bit, so all ranks skip the same steps. ``no_sync()`` is that of
        DistributedDataParallel. A rank that has no more samples passes an empty batch.

    Raises:
        RuntimeError: there is no process group, or a rank has ended. In a backward pass: the same, before any gradient
            is written; or a layer of ``torch.nn`` has a sparse gradient although it does not declare one.
        ValueError: names, shapes, dtypes or options differ between the ranks: on all of them, and nothing is
            changed. A name in ``sparse`` that the module does not have.

    Dense equivalent: ``torch.nn.parallel.DistributedDataParallel``.

    Example:
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> module = torch.nn.Sequential(torch.nn.Embedding(5, 2, sparse=True), torch.nn.Linear(2, 1))
        >>> model = mg.distributed.prepare(module)
        >>> model(torch.tensor([1, 1])).sum().backward()
        >>> module[0].weight.grad.layout, module[1].weight.grad.layout
        (torch.sparse_coo, torch.strided)
        >>> torch.distributed.destroy_process_group()

    Source: ``torch.nn.parallel.DistributedDataParallel``, whose reducer takes sparse gradients of two classes only.
    """
    ranks = ProcessGroup(group, "prepare")
    parts, plan = ParameterPartition(), ""
    with Postponed() as postponed:
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, found {type(module).__name__}")
        parts = partition(module, sparse)
        options = {"init_sync": init_sync, "timeout": timeout, **ddp_options}
        plan = "; ".join([*(f"{name}={shown(options[name])}" for name in sorted(options)), parts.described()])
    check_consistent(ranks, plan, postponed.error)
    return DataParallel(module, ranks, parts, init_sync, timeout, ddp_options)
