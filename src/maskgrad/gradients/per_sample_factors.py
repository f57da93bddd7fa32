"""Gradients per sample of one parameter, kept as factors until the product is needed.

Legend: B samples, P positions within a sample, I inputs, O outputs, V rows of a table, D width of a row.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from maskgrad import sparse
from maskgrad.gradients.gradient import widened_dtype

__all__ = ["Full", "Outer", "Patches", "Rows", "SampleGradients", "joined"]

# Number of entries at a time where gradients must be formed only for their norm.
_ENTRIES_AT_A_TIME = 1 << 22
# From so many input channels on, oneDNN's grouped convolution is faster than patches and a product (2 cores, AVX2).
_CHANNELS_FOR_GROUPS = 8


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

    def _in_parts(self, entries: int) -> Iterator[Any]:
        """Yield some samples at a time, if the gradient of one has ``entries`` entries."""
        step = max(_ENTRIES_AT_A_TIME // max(entries, 1), 1)
        for start in range(0, len(getattr(self, self.factors[0])), step):
            yield self._map(lambda x, start=start: x[start : start + step])  # type: ignore[misc]


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
            return torch.cat([Full(p.gradients()).squared_norms() for p in self._in_parts(inputs * outputs)])
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
class Patches(SampleGradients):
    """The weight of a convolution: outer products of patches of the input and cotangents, one per position."""

    factors = ("inputs", "cotangents")
    inputs: Tensor
    """(B, N, C, *sizes), padded; N images per sample."""
    cotangents: Tensor
    """(B, N, O, *positions)."""
    weight_shape: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def gradients(self) -> Tensor:
        x, g, (batch, images) = self.inputs, self.cotangents, self.inputs.shape[:2]
        on_cpu = x.dtype is torch.float32 and x.device.type == "cpu"
        if on_cpu and self.weight_shape[1] >= _CHANNELS_FOR_GROUPS and x.numel():
            # All samples in one convolution, each as a group.
            x, g = (y.transpose(0, 1).reshape(images, -1, *y.shape[3:]) for y in (x, g))
            found = self._weight_gradient(x, g, batch)
        else:
            found = self._outer().gradients()
        return found.reshape(batch, *self.weight_shape)

    def squared_norms(self) -> Tensor:
        positions = self.inputs.shape[1] * math.prod(self.cotangents.shape[3:])
        patch = math.prod(self.weight_shape[1:])
        parts = self._in_parts(max(math.prod(self.weight_shape), positions * patch * self.groups))
        return torch.cat([part._outer().squared_norms().view(-1, self.groups).sum(1) for part in parts])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        g = self.cotangents * weights.to(self.cotangents.dtype).view(-1, *[1] * (self.cotangents.dim() - 1))
        return self._weight_gradient(self.inputs.flatten(0, 1), g.flatten(0, 1))

    def _weight_gradient(self, images: Tensor, cotangents: Tensor, copies: int = 1) -> Tensor:
        """Return the gradient of ``copies`` copies of the weight, each with its own channels, over all images."""
        shape = (copies * self.weight_shape[0], *self.weight_shape[1:])
        none = (0,) * len(self.stride)
        found: Tensor = torch.ops.aten.convolution_backward(
            cotangents, images, images.new_empty(1).expand(shape), None, self.stride, none, self.dilation, False,
            none, copies * self.groups, (False, True, False),
        )[1]  # fmt: skip
        return found

    def _outer(self) -> Outer:
        """Return the same as outer products, a batch of B * groups."""
        batch, images, channels = self.inputs.shape[:3]
        kernel, sizes = self.weight_shape[2:], self.cotangents.shape[3:]
        x = self.inputs.contiguous()
        strides = x.stride()
        moves = [s * d for s, d in zip(strides[3:], self.dilation, strict=True)]
        steps = [s * d for s, d in zip(strides[3:], self.stride, strict=True)]
        per_group = channels // self.groups
        # Positions last: copied along the rows of the image.
        patches = x.as_strided(
            (batch, self.groups, per_group, *kernel, images, *sizes),
            (strides[0], strides[2] * per_group, strides[2], *moves, strides[1], *steps),
        )
        positions, group = images * math.prod(sizes), batch * self.groups
        g = self.cotangents.unflatten(2, (self.groups, -1)).flatten(4).permute(0, 2, 3, 1, 4)
        return Outer(
            patches.reshape(group, per_group * math.prod(kernel), positions).mT,
            g.reshape(group, self.weight_shape[0] // self.groups, positions).mT,
        )


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
