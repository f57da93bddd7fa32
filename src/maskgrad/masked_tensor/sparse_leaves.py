"""PyTorch's sparse tensors as leaves, with gradients in their own layout and pattern."""

from __future__ import annotations

import weakref
from typing import Any, cast

import torch
from torch import Tensor

from maskgrad.patterns import CompressedPattern, CoordinatePattern, StoredPattern
from maskgrad.patterns.compressed import BY_ROW

__all__ = ["entries_of", "lines_in", "torch_tensor_of"]

#: Layouts that torch itself cannot accumulate: ``do not have is_contiguous``.
NOT_ACCUMULATED = (torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
#: Key in the metadata of an accumulating node of autograd that we handle.
HELPED = "maskgrad accumulates here"
#: … and of the gradient passed to it in a backward pass.
SENT = "maskgrad has sent"


def torch_tensor_of(values: Tensor, pattern: StoredPattern) -> Tensor:
    """Return the sparse tensor of torch with this pattern and these values."""
    shape = pattern.shape(values)
    if isinstance(pattern, CoordinatePattern):
        return torch.sparse_coo_tensor(
            pattern.indices, values, shape, check_invariants=False, is_coalesced=True
        )
    assert isinstance(pattern, CompressedPattern)
    return torch.sparse_compressed_tensor(
        pattern.pointers, pattern.positions, values, shape, layout=pattern.layout, check_invariants=False
    )


def lines_in(t: Tensor) -> tuple[Tensor, Tensor]:
    """Return pointers and positions of a compressed sparse tensor of torch."""
    if t.layout in BY_ROW:
        return t.crow_indices(), t.col_indices()
    return t.ccol_indices(), t.row_indices()


class _Entries(torch.autograd.Function):
    """The (merged) values of a sparse tensor; first derivatives only."""

    @staticmethod
    def forward(t: Tensor, values: Tensor, pattern: StoredPattern) -> Tensor:  # noqa: ARG004
        return values.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.pattern = inputs[2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "from_sparse: create_graph=True is not supported: the second derivative through torch's sparse "
                "constructors is silently wrong; let the values be the leaf: from_sparse(t.detach()).requires_grad_()"
            )
        if ctx.pattern.layout in NOT_ACCUMULATED:
            # Torch cannot sum gradients of several uses either: the first use passes a tensor whose values it owns,
            # the others of the same backward pass add to these.
            node, task = ctx.next_functions[0][0], torch._C._current_graph_task_id()
            before, values = node.metadata.get(SENT, (None, None))
            if before == task:
                values.add_(gradient)
                return None, None, None
            gradient = gradient.clone()
            node.metadata[SENT] = task, gradient
        return torch_tensor_of(gradient, ctx.pattern), None, None


def entries_of(t: Tensor, values: Tensor, pattern: StoredPattern) -> Tensor:
    """Return ``values`` as a function of ``t``, if ``t`` requires grad."""
    if not (t.requires_grad and torch.is_grad_enabled()):
        return values
    result = cast("Tensor", _Entries.apply(t, values, pattern))  # type: ignore[no-untyped-call]
    if t.is_leaf and t.layout in NOT_ACCUMULATED:
        _accumulate_for(t, result)
    return result


def _accumulate_for(t: Tensor, values: Tensor) -> None:
    """Accumulate gradients of a leaf in ``t.grad``, which torch's accumulating node cannot do."""
    assert values.grad_fn is not None
    node: Any = values.grad_fn.next_functions[0][0]
    if HELPED in node.metadata:
        return
    node.metadata[HELPED] = True
    leaf = weakref.ref(t)

    def accumulate(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        owner, (gradient,) = leaf(), gradients
        if owner is None or gradient is None or gradient.layout != owner.layout:
            return gradients
        node.metadata.pop(SENT, None)
        before = owner.grad
        owner.grad = gradient if before is None else _sum(before, gradient)
        return (None,)  # nothing remains for torch to do

    node.register_prehook(accumulate)


def _sum(a: Tensor, b: Tensor) -> Tensor:
    parts = [lines_in(t) for t in (a, b)]
    if a.layout != b.layout or not all(torch.equal(x, y) for x, y in zip(*parts, strict=True)):
        raise RuntimeError(f"the .grad of a leaf of layout {b.layout} must have the pattern of the leaf")
    return torch.sparse_compressed_tensor(
        *parts[0], a.values() + b.values(), a.shape, layout=a.layout, check_invariants=False
    )
