"""Gradients per sample of one parameter, as one call gave them, kept in factors until somebody needs the product.

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
from torch.nn import grad as weight_gradients

from maskgrad import sparse
from maskgrad.gradients.gradient import widened_dtype

__all__ = ["Full", "Outer", "Patches", "Rows", "SampleGradients", "joined"]

# Where gradients have to be formed although only their norm is wanted: about so many entries at a time.
_ENTRIES_AT_A_TIME = 1 << 22
# From so many input channels on, oneDNN's grouped convolution is faster than patches and a product (2 cores, AVX2).
_CHANNELS_FOR_GROUPS = 8


@dataclass(frozen=True)
class SampleGradients(abc.ABC):
    """Gradients per sample of one parameter, (B, *shape)."""

    #: fields that hold numbers, with the samples in their first dimension (but for :class:`Rows`)
    factors: ClassVar[tuple[str, ...]]

    @abc.abstractmethod
    def gradients(self) -> Tensor:
        """All of them, (B, *shape); strided, or COO with two sparse dimensions, merged."""

    @abc.abstractmethod
    def squared_norms(self) -> Tensor:
        """The squared 2-norm of each, (B,), in at least float32."""

    @abc.abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Their sum with ``weights`` (B,), of the parameter's shape; strided or COO."""

    def without(self, samples: Tensor) -> SampleGradients:
        """The same with zeros for ``samples``, Boolean (B,), in all factors: zero times NaN is no zero."""
        return self._map(lambda x: x.masked_fill(samples.view(-1, *[1] * (x.dim() - 1)), 0))

    def within(self, mask: Tensor) -> SampleGradients:
        """The same with zeros outside of ``mask``, Boolean (*shape), whatever stood there; each gradient is formed."""
        return Full(torch.where(mask, self.gradients(), 0))

    def to(self, dtype: torch.dtype) -> SampleGradients:
        """The same in ``dtype``, that of the parameter: autocast computes in another."""
        fits = all(getattr(self, name).dtype is dtype for name in self.factors)
        return self if fits else self._map(lambda x: x.to(dtype))

    def _map(self, function: Callable[[Tensor], Tensor]) -> SampleGradients:
        changed: dict[str, Any] = {name: function(getattr(self, name)) for name in self.factors}
        return replace(self, **changed)

    def _chunks(self, entries: int) -> Iterator[Any]:
        """Some samples at a time, where a sample takes so many ``entries``."""
        step = max(_ENTRIES_AT_A_TIME // max(entries, 1), 1)
        for parts in zip(*(getattr(self, name).split(step) for name in self.factors), strict=True):
            changed: dict[str, Any] = dict(zip(self.factors, parts, strict=True))
            yield replace(self, **changed)


@dataclass(frozen=True)
class Full(SampleGradients):
    """Gradients that are formed already."""

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
        if a.shape[1] == 1:  # on a CPU faster than the batched product, which has nothing to add up
            return g.transpose(1, 2) * a
        return torch.bmm(g.transpose(1, 2), a)

    def squared_norms(self) -> Tensor:
        _, positions, inputs = self.inputs.shape
        outputs = self.cotangents.shape[2]
        if positions * (inputs + outputs) > inputs * outputs:
            return torch.cat([Full(p.gradients()).squared_norms() for p in self._chunks(inputs * outputs)])
        dtype = widened_dtype(self.inputs.dtype)
        a, g = self.inputs.to(dtype), self.cotangents.to(dtype)
        if positions == 1:
            return Full(a).squared_norms() * Full(g).squared_norms()
        # |sum_p g_p a_p^T|^2 = sum_pq <g_p, g_q> <a_p, a_q>: P*P numbers instead of I*O.
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
        batch, images, channels = self.inputs.shape[:3]
        if (
            self.inputs.dtype is torch.float32
            and self.inputs.device.type == "cpu"
            and channels // self.groups >= _CHANNELS_FOR_GROUPS
            and self.inputs.numel()
        ):
            # All samples side by side in one convolution, each a group of its own.
            found = self._weight_gradient(
                self.inputs.transpose(0, 1).reshape(images, batch * channels, *self.inputs.shape[3:]),
                (batch * self.weight_shape[0], *self.weight_shape[1:]),
                self.cotangents.transpose(0, 1).flatten(1, 2),
                batch * self.groups,
            )
        else:
            found = self._outer().gradients()
        return found.reshape(batch, *self.weight_shape)

    def squared_norms(self) -> Tensor:
        positions = math.prod(self.cotangents.shape[3:]) * self.cotangents.shape[1]
        patch = math.prod(self.weight_shape[1:])
        parts = self._chunks(max(math.prod(self.weight_shape), positions * patch * self.groups))
        return torch.cat([part._outer().squared_norms().view(-1, self.groups).sum(1) for part in parts])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        g = self.cotangents
        g = g * weights.to(g.dtype).view(-1, *[1] * (g.dim() - 1))
        return self._weight_gradient(
            self.inputs.flatten(0, 1), self.weight_shape, g.flatten(0, 1), self.groups
        )

    def _weight_gradient(
        self, images: Tensor, shape: tuple[int, ...], cotangents: Tensor, groups: int
    ) -> Tensor:
        """The gradient of a weight of this ``shape``, summed over images (N, C, *sizes)."""
        gradient: Any = (
            weight_gradients.conv1d_weight,
            weight_gradients.conv2d_weight,
            weight_gradients.conv3d_weight,
        )[len(self.stride) - 1]
        found: Tensor = gradient(
            images, shape, cotangents, stride=self.stride, dilation=self.dilation, groups=groups
        )
        return found

    def _outer(self) -> Outer:
        """The same as outer products, a batch of B * groups."""
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
    """Rows of a table that were looked up; a row may occur several times in a sample."""

    factors = ("values",)
    samples: Tensor
    """Which sample, (n,)."""
    rows: Tensor
    """Which row, (n,)."""
    values: Tensor
    """(n, D)."""
    batch: int
    table: tuple[int, int]
    """(V, D)."""
    stays_sparse: bool
    """Whether the gradients are COO."""

    def gradients(self) -> Tensor:
        shape = (self.batch, *self.table)
        if not self.stays_sparse and widened_dtype(self.values.dtype) is self.values.dtype:
            place = self.samples * self.table[0] + self.rows
            dense = self.values.new_zeros(self.batch * self.table[0], self.table[1])
            return dense.index_add_(0, place, self.values).view(shape)
        at, values = self._merged()
        if self.stays_sparse:
            return torch.sparse_coo_tensor(at, values, shape, is_coalesced=True, check_invariants=False)
        return values.new_zeros(shape).index_put_((at[0], at[1]), values)

    def squared_norms(self) -> Tensor:
        at, values = self._merged()
        squares = Full(values).squared_norms()
        return squares.new_zeros(self.batch).index_add_(0, at[0], squares)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        values = self.values * weights.to(self.values.dtype)[self.samples, None]
        if self.stays_sparse:
            at, merged = sparse.merge_entries(self.rows, values, self.table[:1])
            return torch.sparse_coo_tensor(
                at[None], merged, self.table, is_coalesced=True, check_invariants=False
            )
        dtype = widened_dtype(values.dtype)
        total = values.new_zeros(self.table, dtype=dtype)
        return total.index_add_(0, self.rows, values.to(dtype))

    def without(self, samples: Tensor) -> Rows:
        kept = ~samples[self.samples]
        return replace(self, samples=self.samples[kept], rows=self.rows[kept], values=self.values[kept])

    def within(self, mask: Tensor) -> Rows:
        return replace(self, values=torch.where(mask[self.rows], self.values, 0))

    def _merged(self) -> tuple[Tensor, Tensor]:
        """Sample and row, (2, m), each pair once and in order; values, (m, D)."""
        at = torch.stack([self.samples, self.rows])
        return sparse.merge_entries(at, self.values, (self.batch, self.table[0]))


def joined(parts: Sequence[SampleGradients]) -> SampleGradients:
    """The sum of ``parts``, of which there is at least one."""
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Outer) for part in parts):
        return _concatenated(parts, ("inputs", "cotangents"), 1)
    if all(isinstance(part, Rows) for part in parts):
        sparse_ = all(part.stays_sparse for part in parts if isinstance(part, Rows))
        return _concatenated(parts, ("samples", "rows", "values"), 0, stays_sparse=sparse_)
    # A table that is also the weight of a linear map: as in PyTorch, the sum is dense.
    dense = [replace(part, stays_sparse=False) if isinstance(part, Rows) else part for part in parts]
    return Full(functools.reduce(torch.add, [part.gradients() for part in dense]))


def _concatenated(parts: Sequence[Any], names: Sequence[str], dim: int, **changed: Any) -> SampleGradients:
    changed |= {name: torch.cat([getattr(part, name) for part in parts], dim) for name in names}
    found: SampleGradients = replace(parts[0], **changed)
    return found
