"""The gradients of a model, averaged over the ranks, each of whatever kind it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.distributed.all_reduction import checked_choice
from maskgrad.distributed.exchange import Exchange, Op, Slot, Way
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.distributed.sharding import is_sharded
from maskgrad.gradients.attached import (
    AnyGradient,
    current_gradient,
    grad_dtype,
    keep_attached,
    set_grad_dtype,
)
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["all_reduce_gradients", "is_distributed_tensor", "slots_of", "write_gradients"]

Parameters = torch.nn.Module | Tensor | MaskedTensor | Iterable[Tensor | MaskedTensor]


@torch.no_grad()
def all_reduce_gradients(
    params: Parameters, group: Any = None, *, op: Op = "avg", exchange: Way = "auto"
) -> None:
    r"""Average the gradients of parameters over the ranks, in place: dense, sparse, masked, or none on some ranks.

    .. math:: g \leftarrow \frac1W \sum_r g^{(r)}

    What each rank has decides, not what a module declares, and the ranks agree. If one has a dense gradient, all end
    with a dense one in ``.grad``. Sparse ones stay sparse: the result lists the rows that some rank lists, merged,
    attached if it is of a layout that ``.grad`` cannot hold. With a masked one (:func:`maskgrad.attach_gradient`) the
    result is attached, and specifies what some rank specifies. A parameter without a gradient counts as zero;
    without one on any rank it stays without. Everything arrives before anything is written. An error
    on one rank is raised on all of them, and no gradient has been changed then.

    Args:
        params: a module, a parameter, or parameters in the same order on all ranks; leaf MaskedTensors may be
            among them. DTensors and rows of sharded tables are left out: whoever sharded them reduces their gradients.
        group: a process group of any backend; None: the default one.
        op: ``"avg"``, ``"sum"``, or ``"mean"``: divided by the number of ranks that specify an entry.
        exchange: how sparse gradients travel. ``"sparse"``: lists of rows; ``"dense"``: the whole shape; ``"auto"``:
            whichever needs fewer bytes, gradient by gradient.

    Gradient:
        None flows through; the results are detached, and equal bit for bit on all ranks. Halves are added up in float32
        and rounded once.

    Raises:
        TypeError: something among ``params`` is no tensor, or ``params`` is a set, which has no order.
        ValueError: the ranks have parameters of different shapes or dtypes, or a parameter has an attached gradient and
            a ``.grad``.
        IndexError: an index of a sparse gradient lies outside its parameter.
        RuntimeError: there is no process group; a rank has ended, or did not come within the group's timeout.

    Dense equivalent: ``torch.distributed.all_reduce(p.grad, ReduceOp.AVG)`` for each parameter.

    Example:
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> table = torch.nn.Embedding(5, 2, sparse=True)
        >>> table(torch.tensor([1, 1])).sum().backward()
        >>> mg.distributed.all_reduce_gradients(table)
        >>> table.weight.grad.values()
        tensor([[2., 2.]])
        >>> torch.distributed.destroy_process_group()

    Source: ``torch.nn.parallel.DistributedDataParallel``, which asks the module whether its gradient is sparse.
    """
    ranks = ProcessGroup(group, "all_reduce_gradients")
    refusal: Exception | None = None
    owners: list[Tensor] = []
    slots: list[Slot] = []
    try:
        checked_choice("op", op, ("sum", "avg", "mean"))
        checked_choice("exchange", exchange, ("auto", "dense", "sparse"))
        owners = _listed(params)
        slots = slots_of(owners, [f"parameter {number}" for number in range(len(owners))])
    except (TypeError, ValueError) as error:  # the other ranks are told
        refusal = error
    started = Exchange(slots, ranks, op, exchange, refusal)
    started.send()
    write_gradients(owners, started.finish())


def slots_of(params: Sequence[Tensor], names: Sequence[str], present: bool = True) -> list[Slot]:
    """One slot per parameter, with its gradient if ``present``; raises if a parameter has two."""
    return [
        Slot(
            f"gradient of {name}",
            p.shape,
            p.dtype,
            p.device,
            current_gradient(p, name) if present else None,
        )
        for p, name in zip(params, names, strict=True)
    ]


def write_gradients(params: Sequence[Tensor], gradients: Sequence[AnyGradient | None]) -> None:
    """Put gradients in the place of those that parameters have; None: there was none anywhere."""
    for param, gradient in zip(params, gradients, strict=True):
        if gradient is None:
            continue
        keep_attached(param, None)
        held = isinstance(gradient, Tensor) and gradient.layout in (torch.strided, torch.sparse_coo)
        if not held:
            param.grad = None
            keep_attached(param, gradient)
            continue
        assert isinstance(gradient, Tensor)
        present = param.grad
        if (
            present is not None
            and gradient.layout is torch.strided
            and present.layout is torch.strided
            and present.dtype is gradient.dtype
        ):
            present.copy_(gradient)  # others may hold it: a bucket, a view
            continue
        if present is None or present.dtype is not gradient.dtype:
            param.grad = None
            if gradient.dtype is not param.dtype:
                set_grad_dtype(param, gradient.dtype)
            if grad_dtype(param) not in (None, gradient.dtype):
                keep_attached(param, gradient)
                continue
        # Memory of its own: results that travelled together share theirs.
        param.grad = gradient.clone() if gradient.layout is torch.strided else gradient


def is_distributed_tensor(x: object) -> bool:
    """Whether it is a DTensor, whose gradient is reduced by whoever sharded it."""
    return any(kind.__name__ == "DTensor" for kind in type(x).__mro__)


def _listed(params: Parameters) -> list[Tensor]:
    if isinstance(params, torch.nn.Module):
        params = params.parameters()
    elif isinstance(params, (set, frozenset)):
        raise TypeError("params must have the same order on all ranks, found a set; use a list")
    given = [params] if isinstance(params, (Tensor, MaskedTensor)) else list(params)
    found: dict[int, Tensor] = {}
    for one in given:
        if not isinstance(one, (Tensor, MaskedTensor)):
            raise TypeError(f"params must be tensors, found {type(one).__name__}")
        param = one._values if isinstance(one, MaskedTensor) else one
        if not (is_distributed_tensor(param) or is_sharded(param)):
            found.setdefault(id(param), param)
    return list(found.values())
