"""Statistics over specified entries, for update rules that are not entrywise.

Most rules treat every entry separately; those with one state value per row (``state="row"``) do not. They use an
object of this file, which knows the specified entries of the tensors that a rule gets. A state with one value per row
has size 1 in the dimensions that it sums over.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["EVERY", "Listed", "Specified"]


class Specified:
    """The entries of a rule's tensors under ``mask``; None: all."""

    in_pieces = False
    """Whether several pieces of one row have state values of their own, which must stay equal."""

    def __init__(self, mask: Tensor | None = None) -> None:
        self.mask = mask

    def row_mean(self, x: Tensor, like: Tensor) -> Tensor:
        """Mean of ``x`` over the specified entries of each row, in a shape that fits ``like``; 0 if there are none."""
        dims = _summed(x, like)
        if not dims:
            return x
        if self.mask is None:  # an empty mean would be NaN
            return x.mean(dims, keepdim=True) if x.numel() else x.sum(dims, keepdim=True)
        count = self.mask.sum(dims, keepdim=True).clamp_(min=1)
        return self._kept(x).sum(dims, keepdim=True).div_(count)

    def row_amax(self, x: Tensor, like: Tensor) -> Tensor:
        """Largest specified entry of ``x``, all nonnegative, in each row, in a shape that broadcasts to ``like``."""
        return _amax(self._kept(x), _summed(x, like))

    def add_square_(self, total: Tensor, grad: Tensor, weight: float) -> None:
        """Add ``weight`` times the square of ``grad``, or its mean over each row if ``total`` has one value per row."""
        if self.in_pieces or total.shape != grad.shape:
            total.add_(self.row_mean(grad * grad, total), alpha=weight)
        else:
            total.addcmul_(grad, grad, value=weight)

    def update_moments_(
        self, grad: Tensor, first: Tensor, second: Tensor, betas: tuple[float, float]
    ) -> None:
        """Let Adam's two moments decay, and add the gradient and its square."""
        first.lerp_(grad, 1 - betas[0])
        self.add_square_(second.mul_(betas[1]), grad, 1 - betas[1])

    def _kept(self, x: Tensor) -> Tensor:
        return x if self.mask is None else torch.where(self.mask, x, 0)


class Listed(Specified):
    """Listed pieces of rows: piece i, ``x[i]``, belongs to row ``rows[i]``; several may belong to one row.

    A state value is gathered for each piece, so that pieces of one row have equal values.
    """

    in_pieces = True

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        _, self.position, self.pieces = torch.unique(rows, return_inverse=True, return_counts=True)

    def row_mean(self, x: Tensor, like: Tensor) -> Tensor:
        """Mean over all pieces of a row, given to each of them."""
        dims = _summed(x, like)
        entries = x.sum(dims, keepdim=True) if dims else x
        per_piece = x.numel() // max(entries.numel(), 1)
        sums = entries.new_zeros(len(self.pieces), *entries.shape[1:]).index_add_(0, self.position, entries)
        count = (self.pieces * per_piece).clamp_(min=1).view(-1, *(1 for _ in entries.shape[1:]))
        return sums.div_(count).index_select(0, self.position)

    def row_amax(self, x: Tensor, like: Tensor) -> Tensor:
        """Maximum over all pieces of a row, given to each of them."""
        entries = _amax(x, _summed(x, like))
        largest = entries.new_zeros(len(self.pieces), *entries.shape[1:])
        at = self.position.view(-1, *(1 for _ in entries.shape[1:])).expand_as(entries)
        return largest.scatter_reduce_(0, at, entries, "amax").index_select(0, self.position)


EVERY = Specified()


def _summed(x: Tensor, like: Tensor) -> list[int]:
    return [d for d, (wide, narrow) in enumerate(zip(x.shape, like.shape, strict=True)) if wide != narrow]


def _amax(x: Tensor, dims: list[int]) -> Tensor:
    if not dims:
        return x
    if x.numel() == 0:  # amax is undefined for an empty row
        return x.sum(dims, keepdim=True)
    return x.amax(dims, keepdim=True)
