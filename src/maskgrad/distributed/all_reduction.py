"""Tensors and gradients summed over the ranks, of any kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.distributed.agreement import Postponed
from maskgrad.distributed.exchange import NamedGradient, Op, exchanged
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.gradients.attached import AnyGradient, current_gradient, keep_attached, replace_gradient
from maskgrad.masked_tensor import MaskedTensor

__all__ = [
    "all_reduce", "all_reduce_gradients", "is_distributed_tensor", "named_gradients", "write_gradients",
]  # fmt: skip


def all_reduce(x: AnyGradient, op: Op = "sum", group: Any = None) -> Any:
    r"""Sum tensors over the ranks: dense, sparse or masked tensors, also of different kinds.

    .. math:: y_i = \frac1d \sum_{r:\, i \text{ specified on rank } r} x^{(r)}_i, \qquad d = 1 \text{ or } W

    Args:
        x: strided, COO, CSR, CSC, BSR or BSC tensor, or MaskedTensor of any layout, of a dtype that can
            be summed. All ranks have the same shape and dtype.
        op: ``"sum"``; or ``"avg"``, the sum divided by the number W of ranks, as gradients are averaged.
        group: a process group of any backend; None: the default one.

    Returns:
        The result, the same bit for bit on all ranks and detached; ``x`` is not changed. An entry is specified where
        it is on any rank. One strided tensor makes the result strided, one Boolean mask makes it a MaskedTensor with a
        mask; otherwise it is COO. Half precision is added in float32
        and rounded once; Booleans are counted. For a differentiable sum see :func:`maskgrad.distributed.sum`.

    Raises:
        TypeError: ``x`` is not a tensor, or its dtype has no average. On all ranks, as the next two.
        ValueError: shapes, dtypes or arguments differ between the ranks; ``op`` is unknown.
        IndexError: an index of a sparse ``x`` lies outside its shape.
        RuntimeError: there is no process group; a rank has ended, or did not respond within the group's timeout.

    Dense equivalent: ``torch.distributed.all_reduce``, in place.

    Example:
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> t = torch.sparse_coo_tensor([[1, 1]], [2., 3.], (3,), check_invariants=True)
        >>> mg.distributed.all_reduce(t).values()
        tensor([5.])
        >>> torch.distributed.destroy_process_group()

    Source: gloo's sparse all-reduce, which NCCL and half precision do not support (PyTorch issue 22400).
    """
    ranks = ProcessGroup(group, "all_reduce")
    gradients: list[NamedGradient] = []
    with Postponed() as postponed:
        if not isinstance(x, (Tensor, MaskedTensor)):
            raise TypeError(f"x must be a tensor or a MaskedTensor, found {type(x).__name__}")
        if op != "sum" and not (x.dtype.is_floating_point or x.dtype.is_complex):
            raise TypeError(
                f"op={op!r} has no meaning for dtype {x.dtype}; use op='sum', or convert x to a float"
            )
        gradients = [NamedGradient("x", x.shape, x.dtype, x.device, x)]
    return exchanged(gradients, ranks, op, postponed.error)[0]


Parameters = torch.nn.Module | Tensor | MaskedTensor | Iterable[Tensor | MaskedTensor]


@torch.no_grad()
def all_reduce_gradients(params: Parameters, group: Any = None, *, op: Op = "avg") -> None:
    r"""Average the gradients of parameters over the ranks, in place: dense, sparse, masked, or none on some ranks.

    .. math:: g \leftarrow \frac1W \sum_r g^{(r)}

    The result depends on the gradients, not on the module. If one rank has a dense gradient, all end with a dense one
    in ``.grad``. Sparse ones stay sparse: the result is COO, with the rows of all ranks, merged. With a masked one
    (:func:`maskgrad.attach_gradient`) the result is attached, and specified where any rank's is. A missing gradient
    counts as zero, unless no rank has one. The results are detached, and equal bit for bit on all ranks. An error on
    one rank is raised on all of them, before any gradient is changed.

    Args:
        params: a module, a parameter, or parameters in the same order on all ranks; leaf MaskedTensors may be
            among them. DTensors, whose gradients are reduced already, are ignored.
        group: a process group of any backend; None: the default one.
        op: ``"avg"`` or ``"sum"``.

    Raises:
        TypeError: something among ``params`` is not a tensor, or ``params`` is a set, which has no order.
        ValueError: parameters differ in shape or dtype between the ranks, or one has an attached gradient and a
            ``.grad``.
        IndexError: an index of a sparse gradient lies outside its parameter.
        RuntimeError: there is no process group; a rank has ended, or did not respond within the group's timeout.

    Dense equivalent: ``torch.distributed.all_reduce(p.grad, ReduceOp.AVG)`` for each parameter.

    Example:
        >>> torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        >>> table = torch.nn.Embedding(5, 2, sparse=True)
        >>> table(torch.tensor([1, 1])).sum().backward()
        >>> mg.distributed.all_reduce_gradients(table)
        >>> table.weight.grad.values()
        tensor([[2., 2.]])
        >>> torch.distributed.destroy_process_group()

    Source: ``torch.nn.parallel.DistributedDataParallel``, for which the module determines whether a gradient is sparse.
    """
    ranks = ProcessGroup(group, "all_reduce_gradients")
    owners: list[Tensor] = []
    gradients: list[NamedGradient] = []
    with Postponed() as postponed:
        owners = _listed(params)
        gradients = named_gradients(owners, [f"parameter {number}" for number in range(len(owners))])
    write_gradients(owners, exchanged(gradients, ranks, op, postponed.error))


def named_gradients(params: Sequence[Tensor], names: Sequence[str]) -> list[NamedGradient]:
    """The gradient of each parameter; raises if a parameter has two."""
    return [
        NamedGradient(f"gradient of {name}", p.shape, p.dtype, p.device, current_gradient(p, name))
        for p, name in zip(params, names, strict=True)
    ]


def write_gradients(params: Sequence[Tensor], gradients: Sequence[AnyGradient | None]) -> None:
    """Replace the gradients of parameters; None: no rank had one."""
    for param, gradient in zip(params, gradients, strict=True):
        if gradient is None:
            continue
        keep_attached(param, None)
        if not isinstance(gradient, Tensor) or gradient.layout not in (torch.strided, torch.sparse_coo):
            param.grad = None
            keep_attached(param, gradient)
            continue
        present, dense = param.grad, gradient.layout is torch.strided
        if (
            dense
            and present is not None
            and (present.layout, present.dtype) == (torch.strided, gradient.dtype)
        ):
            present.copy_(gradient)  # it may be referenced elsewhere: a bucket, a view
        else:  # a copy, as results of one exchange share memory
            replace_gradient(param, gradient.clone() if dense else gradient)


def is_distributed_tensor(x: object) -> bool:
    """Return whether it is a DTensor, whose gradient is reduced where it is sharded."""
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
        if not is_distributed_tensor(param):
            found.setdefault(id(param), param)
    return list(found.values())
