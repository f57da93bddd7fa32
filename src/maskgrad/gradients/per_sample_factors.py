"""Gradients per sample of one parameter, kept as factors until the product is needed.

Legend: B samples, P positions within a sample, I inputs, O outputs, V rows of a table, D width of a row.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from maskgrad import sparse
from maskgrad.gradients.gradient import widened_dtype

__all__ = ["Full", "Outer", "Rows", "SampleGradients", "joined"]


@dataclass(frozen=True)
class SampleGradients(abc.ABC):
    """Gradients per sample of one parameter, (B, *shape)."""

    #: fields with values, with the samples in their first dimension (but for :class:`Rows`)
    factors: ClassVar[tuple[str, ...]]

    @abc.abstractmethod
    def gradients(self) -> Tensor:
        """Return all of them, (B, *shape); strided, or COO with two sparse dimensions, merged."""

    @abc.abstractmethod
    def squared_norms(self) -> Tensor:
        """Return the squared 2-norm of each, (B,), in at least float32."""

    @abc.abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return their sum with ``weights`` (B,), of the parameter's shape; strided or COO."""

    def without(self, samples: Tensor) -> SampleGradients:
        """Return the same with zeros for ``samples``, Boolean (B,), in all factors: zero times NaN is no zero."""
        return self._map(lambda x: x.masked_fill(samples.view(-1, *[1] * (x.dim() - 1)), 0))

    def within(self, mask: Tensor) -> SampleGradients:
        """Return the same with zeros outside of ``mask``, Boolean (*shape); each gradient is formed."""
        return Full(torch.where(mask, self.gradients(), 0))

    def to(self, dtype: torch.dtype) -> SampleGradients:
        """Return the same in ``dtype``, that of the parameter: autocast computes in another."""
        return self._map(lambda x: x.to(dtype))

    def _map(self, function: Callable[[Tensor], Tensor]) -> SampleGradients:
        changed: dict[str, Any] = {name: function(getattr(self, name)) for name in self.factors}
        return replace(self, **changed)


@dataclass(frozen=True)
class Full(SampleGradients):
    """Gradients in full."""

    factors = ("values",)
    values: Tensor
    """(B, *shape)."""

    def gradients(self) -> Tensor:
        return self.values

    def squared_norms(self) -> Tensor:
        rows = self.values.flatten(1) if self.values.dim() > 1 else self.values.unsqueeze(1)
        if rows.requires_grad:  # the norm has no second derivative at zero
            parts = torch.view_as_real(rows).flatten(1) if rows.is_complex() else rows
            return parts.to(widened_dtype(parts.dtype)).square().sum(1)
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=widened_dtype(rows.dtype))
        return norms.square()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        dtype = widened_dtype(self.values.dtype)
        rows = self.values.unsqueeze(-1).flatten(1).to(dtype)
        return (weights.to(dtype) @ rows).view(self.values.shape[1:])


@dataclass(frozen=True)
class Outer(SampleGradients):
    r"""Outer products summed over positions, :math:`G_b = \sum_p g_{bp} \bar a_{bp}^T`: the weight of a linear map."""

    factors = ("inputs", "cotangents")
    inputs: Tensor
    """a, (B, P, I)."""
    cotangents: Tensor
    """g, (B, P, O)."""

    def gradients(self) -> Tensor:
        a, g = self.inputs.conj(), self.cotangents
        if a.shape[1] == 1:  # faster than the batched product on a CPU, as nothing is summed
            return g.transpose(1, 2) * a
        return torch.bmm(g.transpose(1, 2), a)

    def squared_norms(self) -> Tensor:
        (_, positions, inputs), outputs = self.inputs.shape, self.cotangents.shape[2]
        if positions * (inputs + outputs) > inputs * outputs:
            return Full(self.gradients()).squared_norms()
        # |sum_p g_p a_p^T|^2 = sum_pq <g_p, g_q> <a_p, a_q>: P*P values instead of I*O.
        dtype = widened_dtype(self.inputs.dtype)
        a, g = self.inputs.to(dtype), self.cotangents.to(dtype)
        products = torch.bmm(g, g.mH) * torch.bmm(a, a.mH).conj()
        total = products.sum((1, 2))
        return (total.real if total.is_complex() else total).clamp(min=0)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        g = self.cotangents * weights.to(self.cotangents.dtype)[:, None, None]
        return g.flatten(0, 1).mT @ self.inputs.flatten(0, 1).conj()


@dataclass(frozen=True)
class Rows(SampleGradients):
    """Rows of a table that were looked up; possibly several times in a sample."""

    factors = ("values",)
    samples: Tensor
    """Sample of each look-up, (n,)."""
    rows: Tensor
    """Row of each look-up, (n,)."""
    values: Tensor
    """(n, D)."""
    batch: int
    table: tuple[int, int]
    """(V, D)."""
    sparse: bool
    """Whether the gradients are COO."""

    def gradients(self) -> Tensor:
        shape = (self.batch, *self.table)
        if self.sparse:
            at, values = self._merged()
            return torch.sparse_coo_tensor(at, values, shape, is_coalesced=True, check_invariants=False)
        return self._dense(self.samples * self.table[0] + self.rows, self.values, shape).to(self.values.dtype)

    def squared_norms(self) -> Tensor:
        at, values = self._merged()
        squares = Full(values).squared_norms()
        return squares.new_zeros(self.batch).index_add_(0, at[0], squares)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        values = self.values * weights.to(self.values.dtype)[self.samples, None]
        if not self.sparse:
            return self._dense(self.rows, values, self.table)
        at, values = sparse.merge_entries(self.rows, values, self.table[:1])
        return torch.sparse_coo_tensor(
            at[None], values, self.table, is_coalesced=True, check_invariants=False
        )

    def without(self, samples: Tensor) -> Rows:
        kept = ~samples[self.samples]
        return replace(self, samples=self.samples[kept], rows=self.rows[kept], values=self.values[kept])

    def within(self, mask: Tensor) -> Rows:
        return replace(self, values=torch.where(mask[self.rows], self.values, 0))

    def _merged(self) -> tuple[Tensor, Tensor]:
        """Return sample and row, (2, m), distinct pairs in order, and values (m, D)."""
        at = torch.stack([self.samples, self.rows])
        return sparse.merge_entries(at, self.values, (self.batch, self.table[0]))

    @staticmethod
    def _dense(at: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return ``values`` (n, D) summed at ``at`` (n,), in at least float32."""
        dtype = widened_dtype(values.dtype)
        total = values.new_zeros(math.prod(shape[:-1]), shape[-1], dtype=dtype)
        return total.index_add_(0, at, values.to(dtype)).view(shape)


def joined(parts: Sequence[SampleGradients]) -> SampleGradients:
    """Return the sum of one or more parts."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Outer) for part in parts):
        return _concatenated(parts, ("inputs", "cotangents"), 1)
    if all(isinstance(part, Rows) for part in parts):
        still_sparse = all(part.sparse for part in parts if isinstance(part, Rows))
        return _concatenated(parts, ("samples", "rows", "values"), 0, sparse=still_sparse)
    # A table that is also the weight of a linear map: as in PyTorch, the sum is dense.
    dense = [replace(part, sparse=False) if isinstance(part, Rows) else part for part in parts]
    return Full(functools.reduce(torch.add, [part.gradients() for part in dense]))


def _concatenated(parts: Sequence[Any], names: Sequence[str], dim: int, **changed: Any) -> SampleGradients:
    changed |= {name: torch.cat([getattr(part, name) for part in parts], dim) for name in names}
    found: SampleGradients = replace(parts[0], **changed)
    return found
