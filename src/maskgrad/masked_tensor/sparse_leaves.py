"""PyTorch's sparse tensors as leaves, with gradients in their own layout and pattern."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from maskgrad.patterns import CompressedPattern, CoordinatePattern, StoredPattern
from maskgrad.patterns.compressed import BY_ROW

__all__ = ["entries_of", "lines_in", "torch_tensor_of"]

#: Layouts of which PyTorch cannot accumulate gradients: ``do not have is_contiguous``.
NOT_ACCUMULATED = (torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


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
        return torch_tensor_of(gradient, ctx.pattern), None, None


def entries_of(t: Tensor, values: Tensor, pattern: StoredPattern) -> Tensor:
    """Return ``values`` as a function of ``t``, if ``t`` requires grad."""
    if not (t.requires_grad and torch.is_grad_enabled()):
        return values
    if t.is_leaf and t.layout in NOT_ACCUMULATED:
        raise TypeError(
            f"t must not be a leaf of layout {t.layout} that requires grad: PyTorch accumulates no gradients of this "
            "layout; make the values the leaf: mg.from_sparse(t.detach()).requires_grad_()"
        )
    return cast("Tensor", _Entries.apply(t, values, pattern))  # type: ignore[no-untyped-call]
