"""One call that makes a module train on several ranks."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from maskgrad.distributed.agreement import agree
from maskgrad.distributed.all_reduction import checked_choice
from maskgrad.distributed.exchange import Way
from maskgrad.distributed.partition import ParameterPartition, partition
from maskgrad.distributed.process_group import ProcessGroup

if TYPE_CHECKING:
    from maskgrad.distributed.data_parallel import DataParallel

__all__ = ["prepare"]


def prepare(
    module: nn.Module,
    group: Any = None,
    *,
    sparse: Iterable[str | Tensor | nn.Module] | None = None,
    exchange: Way = "auto",
    overlap: bool = True,
    init_sync: bool = True,
    timeout: datetime.timedelta | None = None,
    exchange_bucket_mb: float = 1.0,
    **ddp_options: Any,
) -> DataParallel:
    """Make a module train on several ranks as one process would on the joint batch, whatever gradients it has.

    Args:
        module: any module; compiled ones, tied weights, and modules whose dense part was sharded with
            ``fully_shard(module, ignored_params=...)`` among them.
        group: a process group of any backend; None: the default one.
        sparse: names, parameters or modules that are exchanged by what their gradients turn out to be. Parameters of
            layers with ``sparse=True`` and of classes from outside ``torch.nn`` are, without being named.
        exchange: how sparse gradients travel: ``"sparse"``, lists of rows; ``"dense"``, the whole shape; ``"auto"``,
            whichever needs fewer bytes, step by step.
        overlap: exchange while the backward pass goes on; False: at its end.
        init_sync: give all ranks the parameters and buffers of rank 0.
        timeout: after which a rank that does not come is an error, for what is exchanged here; None: that of the
            group, as ``init_process_group(timeout=…)`` set it.
        exchange_bucket_mb: parameters that are not larger together, in MiB, travel in one exchange; larger ones each in
            its own. Fewer exchanges cost less, more of them start earlier.
        ddp_options: for the dense part, such as ``find_unused_parameters=True``, ``static_graph=True``,
            ``gradient_as_bucket_view=True``, ``device_ids=[...]``, ``bucket_cap_mb=...``.

    Returns:
        A module that is called like ``module``, its attribute of that name. After ``backward()`` the gradients are
        averages over the ranks, as :func:`maskgrad.distributed.all_reduce_gradients` makes them: in ``.grad``, or
        attached. Optimizers, ``mg.amp.GradScaler`` and clipping need not know; ranks whose gradients are equal bit for
        bit skip the same steps. Its ``no_sync()`` and ``join()`` are those of DistributedDataParallel.

    Gradient:
        Averaged, so that a loss that is a mean over equal numbers of samples has the gradient of one process;
        for masked losses see :func:`maskgrad.distributed.global_losses`.

    Raises:
        RuntimeError: there is no process group, or a rank has ended. In a backward pass: the same, before any gradient
            of the exchange has been written; or a layer of ``torch.nn`` has a sparse gradient that it did not declare.
        ValueError: names, shapes, dtypes or options differ between the ranks: on all of them, and nothing has been
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
    refusal: Exception | None = None
    parts, plan = ParameterPartition(), ""
    try:
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, found {type(module).__name__}")
        checked_choice("exchange", exchange, ("auto", "dense", "sparse"))
        parts = partition(module, sparse)
        own = {"exchange": exchange, "overlap": overlap, "init_sync": init_sync, "timeout": timeout}
        options = {**own, "exchange_bucket_mb": exchange_bucket_mb, **ddp_options}
        plan = "; ".join(
            [*(f"{name}={_shown(options[name])}" for name in sorted(options)), parts.described()]
        )
    except (TypeError, ValueError) as error:  # the other ranks are told
        refusal = error
    agree(ranks, plan, refusal)
    # A class derived from what a build without torch.distributed lacks.
    from maskgrad.distributed.data_parallel import DataParallel

    mebibyte = 1 << 20
    return DataParallel(
        module,
        ranks,
        parts,
        exchange,
        overlap,
        init_sync,
        timeout,
        exchange_bucket_mb * mebibyte,
        ddp_options,
    )


def _shown(value: object) -> str:
    """An option in words that do not depend on the rank."""
    plain = (str, int, float, bool, type(None), datetime.timedelta)
    return repr(value) if isinstance(value, plain) else f"a {type(value).__name__}"
