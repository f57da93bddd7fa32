"""One operation on a dense tensor with a mask, as each contender says it, forward or forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.agreement import agree
from benchmarks.case import OURS, Comparison, Implementation
from benchmarks.deletion import Deleted, verifier
from benchmarks.samples import random_values
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["FORWARD", "FORWARD_AND_BACKWARD", "Formulation", "compiled", "masked_comparison", "memory_copy"]

FORWARD, FORWARD_AND_BACKWARD = "forward", "forward + backward"
#: values and mask -> result; unspecified entries of a result that has the shape of the values do not matter
Function = Callable[[Tensor, Tensor], Any]


@dataclass(frozen=True)
class Formulation:
    """How one says an operation; None: there is no way."""

    ours: Function
    where: Function | None
    dense: Callable[[Tensor], Tensor]
    deleted: Deleted
    masked: Function | None = None
    indexing: Function | None = None
    #: along which dimensions the operation works
    dims: tuple[int, ...] = (-1,)
    #: instead of the result itself, when positions are compared, which may differ between ties
    read: Callable[[Tensor, Any], Any] | None = None


def masked_comparison(
    formulation: Formulation,
    x: Tensor,
    mask: Tensor,
    work: str = FORWARD,
    bytes_moved: int | None = None,
    *,
    with_compiled: bool = False,
) -> Comparison:
    """The ways to compute ``formulation`` on ``x`` where ``mask`` is True.

    With ``torch.compile`` only on request: it takes seconds for each case.
    """
    dims = tuple(dim % x.ndim for dim in formulation.dims)
    weight = None if work == FORWARD else _weight(formulation, x, mask)
    dtype = str(x.dtype).removeprefix("torch.")

    def read(found: Any) -> Any:
        if weight is not None:
            return _readable(found[0], mask), found[1]
        return _readable(found if formulation.read is None else formulation.read(x, found), mask)

    def contender(function: Function, is_yardstick: bool = False) -> Callable[[], Implementation]:
        def make() -> Implementation:
            return Implementation(_call(function, x, mask, weight), None if is_yardstick else read)

        return make

    contenders = {OURS: contender(formulation.ours)}
    if formulation.masked is not None:
        contenders["torch.masked"] = contender(formulation.masked)
    if formulation.where is not None:
        where = formulation.where
        contenders["where"] = contender(where)
        if with_compiled:
            contenders["compiled-where"] = lambda: Implementation(
                _call(compiled(where), x, mask, weight), read
            )
    if formulation.indexing is not None:
        contenders["indexing"] = contender(formulation.indexing)
    contenders["dense"] = contender(lambda values, _: formulation.dense(values), is_yardstick=True)
    if bytes_moved is not None:
        contenders["memory-copy"] = lambda: memory_copy(bytes_moved)

    return Comparison(
        contenders,
        verify=verifier(formulation.deleted, x, mask, dims, dtype, weight),
        agree=lambda ours, theirs: agree(theirs, ours, dtype),
        bytes_moved=bytes_moved,
    )


def compiled(function: Function) -> Function:
    """``function`` under ``torch.compile``, as one graph and for these very shapes."""
    torch._dynamo.reset()  # what was compiled for other cases counts towards the limit of recompilations
    result: Function = torch.compile(function, fullgraph=True, dynamic=False)
    return result


def memory_copy(bytes_moved: int) -> Implementation:
    """A copy that reads and writes so many bytes together."""
    source = torch.zeros(max(bytes_moved // 8, 1))  # four bytes each, read and written
    target = torch.empty_like(source)
    return Implementation(lambda: target.copy_(source), read=None)


def _call(function: Function, x: Tensor, mask: Tensor, weight: Tensor | None) -> Callable[[], Any]:
    if weight is None:
        return lambda: function(x, mask)
    leaf = x.detach().clone().requires_grad_()

    def forward_and_backward() -> tuple[Any, Tensor]:
        result = function(leaf, mask)
        return result, torch.autograd.grad(result, leaf, weight)[0]

    return forward_and_backward


def _weight(formulation: Formulation, x: Tensor, mask: Tensor) -> Tensor:
    """What the gradient of the result is; 0 where the result is unspecified, for peers that would let it through."""
    with torch.no_grad():
        shape = _plain(formulation.ours(x, mask)).shape
    weight = random_values(shape, "float32", seed=7, around=0.0).to(x.dtype)
    return torch.where(mask, weight, 0) if weight.shape == mask.shape else weight


def _plain(found: Any) -> Tensor:
    plain: Tensor = found.filled(0) if isinstance(found, MaskedTensor) else found
    return plain


def _readable(found: Any, mask: Tensor) -> Tensor:
    """The result as a plain tensor without graph, zero where it is unspecified."""
    if isinstance(found, torch.masked.MaskedTensor):
        found = found.to_tensor(0)
    plain = _plain(found).detach()
    return torch.where(mask, plain, 0) if plain.shape == mask.shape else plain
