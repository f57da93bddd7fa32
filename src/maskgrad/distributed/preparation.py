"""One call that makes a module train on several ranks."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from maskgrad.distributed.agreement import Postponed, check_choice, check_consistent
from maskgrad.distributed.all_reduction import is_distributed_tensor
from maskgrad.distributed.exchange import Transport
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.distributed.sharding.shards import is_sharded

if TYPE_CHECKING:
    from maskgrad.distributed.data_parallel import DataParallel

__all__ = ["ParameterPartition", "partition", "prepare"]


@dataclass(frozen=True, slots=True)
class ParameterPartition:
    """Parameters that need a gradient, by name; a shared one by its first name."""

    dense: dict[str, Tensor] = field(default_factory=dict)
    """For DistributedDataParallel, which adds up whole tensors in buckets."""
    exchanged: dict[str, Tensor] = field(default_factory=dict)
    """For our exchange, which asks the gradients of what kind they are."""
    local: dict[str, Tensor] = field(default_factory=dict)
    """Left alone: DTensors, rows of sharded tables, and what a module says is its own."""

    def described(self) -> str:
        """A text that is the same on ranks that can train together."""
        return "; ".join(
            f"parameter {name!r} of shape {tuple(p.shape)} and {p.dtype} ({kind}, {p.device.type})"
            for kind, params in (("dense", self.dense), ("exchanged", self.exchanged))
            for name, p in params.items()
        )


def partition(module: nn.Module, sparse: Iterable[str | Tensor | nn.Module] | None) -> ParameterPartition:
    """Divide the parameters of ``module``.

    Layers of ``torch.nn`` without ``sparse=True`` have dense gradients. What a class from elsewhere does with its own
    parameters cannot be known, so they are exchanged by what their gradients turn out to be; and so are the names,
    parameters and modules in ``sparse``.
    """
    everything: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    chosen = _chosen(everything, sparse)
    chosen |= {
        id(p)
        for owner in module.modules()
        for p in owner.parameters(recurse=False)
        if not _dense_by_nature(owner)
    }
    own: set[int] = set()
    for prefix, owner in module.named_modules():
        for name in getattr(owner, "_ddp_params_and_buffers_to_ignore", ()):
            whole = f"{prefix}.{name}" if prefix else name
            own |= {id(everything[whole])} if whole in everything else set()
    found = ParameterPartition()
    for name, p in module.named_parameters():
        if id(p) in own or is_distributed_tensor(p) or is_sharded(p):
            found.local[name] = p
        elif p.requires_grad:
            (found.exchanged if id(p) in chosen else found.dense)[name] = p
    return found


def _chosen(everything: dict[str, Tensor], sparse: Iterable[str | Tensor | nn.Module] | None) -> set[int]:
    if isinstance(sparse, (str, Tensor, nn.Module)):
        sparse = [sparse]
    known = {id(p) for p in everything.values()}
    chosen: set[int] = set()
    for one in sparse or ():
        if isinstance(one, nn.Module):
            found = {id(p) for p in one.parameters()}
        elif isinstance(one, Tensor):
            found = {id(one)}
        elif isinstance(one, str):
            found = {id(p) for name, p in everything.items() if name == one or name.startswith(f"{one}.")}
            if not found:
                raise ValueError(f"sparse names {one!r}, but the module has no such parameter or part")
        else:
            raise TypeError(f"sparse must hold names, parameters or modules, found {type(one).__name__}")
        if not found <= known:
            raise ValueError(
                "sparse holds a parameter that the module does not have; pass one of this module"
            )
        chosen |= found
    return chosen


def _dense_by_nature(owner: nn.Module) -> bool:
    if getattr(owner, "sparse", False):
        return False
    return type(owner).__module__.startswith(("torch.nn.", "torch.ao.")) or type(owner) is nn.Module


def check_gradient_is_dense(name: str, gradient: Tensor) -> None:
    """RuntimeError where a parameter of DistributedDataParallel, which cannot take it, has a sparse gradient."""
    if gradient.layout is not torch.strided:
        raise RuntimeError(
            f"parameter {name!r} has a gradient of layout {gradient.layout}, although its layer is one of torch.nn "
            f"with dense gradients; declare it: mg.distributed.prepare(module, sparse=[{name!r}])"
        )


def prepare(
    module: nn.Module,
    group: Any = None,
    *,
    sparse: Iterable[str | Tensor | nn.Module] | None = None,
    exchange: Transport = "auto",
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
        sparse: names, parameters or modules whose gradients are exchanged by what they turn out to be. Those of layers
            with ``sparse=True`` and of classes outside ``torch.nn`` are, without being named.
        exchange: how sparse gradients are sent: ``"sparse"``, lists of rows; ``"dense"``, the whole shape; ``"auto"``,
            whichever is smaller, step by step.
        overlap: exchange during the backward pass; False: at its end.
        init_sync: give all ranks the parameters and buffers of rank 0.
        timeout: how long an exchange waits for a rank; None: as ``init_process_group(timeout=…)`` says.
        exchange_bucket_mb: parameters that are not larger together, in MiB, travel in one exchange. Fewer exchanges
            cost less, more of them start earlier.
        ddp_options: for the dense part, such as ``find_unused_parameters=True``, ``static_graph=True``,
            ``gradient_as_bucket_view=True``, ``device_ids=[...]``, ``bucket_cap_mb=...``.

    Returns:
        A module that is called like ``module``, its attribute of that name. After ``backward()`` the gradients are
        averages over the ranks, in ``.grad`` or attached, as by :func:`maskgrad.distributed.all_reduce_gradients`: a
        mean loss over equal numbers of samples has the gradient of one process; for masked losses see
        :func:`maskgrad.distributed.global_losses`. Optimizers, ``mg.amp.GradScaler`` and clipping work as they are:
        gradients are equal bit for bit, so all ranks skip the same steps. ``no_sync()`` and ``join()`` are those of
        DistributedDataParallel.

    Raises:
        RuntimeError: there is no process group, or a rank has ended. In a backward pass: the same, before any gradient
            has been written; or a layer of ``torch.nn`` has a sparse gradient that it did not declare.
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
    parts, plan = ParameterPartition(), ""
    with Postponed() as postponed:
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be a torch.nn.Module, found {type(module).__name__}")
        check_choice("exchange", exchange, ("auto", "dense", "sparse"))
        parts = partition(module, sparse)
        own = {"exchange": exchange, "overlap": overlap, "init_sync": init_sync, "timeout": timeout}
        options = {**own, "exchange_bucket_mb": exchange_bucket_mb, **ddp_options}
        plan = "; ".join(
            [*(f"{name}={_shown(options[name])}" for name in sorted(options)), parts.described()]
        )
    check_consistent(ranks, plan, postponed.error)
    # A class derived from what a build without torch.distributed lacks.
    from maskgrad.distributed.data_parallel import DataParallel

    bucket_bytes = exchange_bucket_mb * (1 << 20)
    return DataParallel(
        module, ranks, parts, exchange, overlap, init_sync, timeout, bucket_bytes, ddp_options
    )


def _shown(value: object) -> str:
    """An option in words that do not depend on the rank."""
    plain = (str, int, float, bool, type(None), datetime.timedelta)
    return repr(value) if isinstance(value, plain) else f"a {type(value).__name__}"
