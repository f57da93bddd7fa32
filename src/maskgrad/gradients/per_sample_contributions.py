"""What one use of a parameter contributes to its gradients per sample, kept in factors until somebody asks.

Legend: B samples, P positions within a sample, I inputs, O outputs, V rows of a table, D width of a row.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import grad as weight_gradients

from maskgrad import sparse

__all__ = ["Contribution", "Full", "Outer", "Patches", "Rows", "joined", "wide_dtype"]

# Where gradients have to be formed although only their norm is wanted: about so many entries at a time.
_ENTRIES_AT_A_TIME = 1 << 22
# From so many input channels on, oneDNN's grouped convolution is faster than patches and a product (2 cores, AVX2).
_CHANNELS_FOR_GROUPS = 8


class Contribution(abc.ABC):
    """Gradients per sample of one parameter, (B, *shape), in whatever form they came up."""

    @abc.abstractmethod
    def gradients(self) -> Tensor:
        """All of them, (B, *shape); strided, or COO with two sparse dimensions, merged."""

    @abc.abstractmethod
    def squared_norms(self) -> Tensor:
        """The squared 2-norm of each, (B,), in at least float32."""

    @abc.abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Their sum with ``weights`` (B,), of the parameter's shape; strided or COO."""

    @abc.abstractmethod
    def without(self, samples: Tensor) -> Contribution:
        """The same with zeros for ``samples``, Boolean (B,), whatever stood there."""

    def within(self, mask: Tensor) -> Contribution:
        """The same with zeros outside of ``mask``, Boolean (*shape), whatever stood there; each gradient is formed."""
        return Full(torch.where(mask, self.gradients(), 0))

    @abc.abstractmethod
    def to(self, dtype: torch.dtype) -> Contribution:
        """The same in ``dtype``, that of the parameter: autocast computes in another."""


@dataclass(frozen=True)
class Full(Contribution):
    """Gradients that are already there."""

    values: Tensor
    """(B, *shape)."""

    def gradients(self) -> Tensor:
        return self.values

    def squared_norms(self) -> Tensor:
        if not self.values.numel():
            return _zeros(len(self.values), self.values)
        rows = self.values.reshape(len(self.values), -1)
        if rows.requires_grad:  # the norm has no second derivative at zero
            parts = torch.view_as_real(rows).flatten(1) if rows.is_complex() else rows
            return parts.to(wide_dtype(parts.dtype)).square().sum(1)
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=wide_dtype(self.values.dtype))
        return norms.square()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        shape = self.values.shape[1:]
        if not self.values.numel():
            return self.values.new_zeros(shape)
        dtype = wide_dtype(self.values.dtype)
        rows = self.values.reshape(len(self.values), -1).to(dtype)
        return (weights.to(dtype) @ rows).view(shape)

    def without(self, samples: Tensor) -> Full:
        return Full(_zeroed(self.values, samples))

    def to(self, dtype: torch.dtype) -> Full:
        return Full(self.values.to(dtype))


@dataclass(frozen=True)
class Outer(Contribution):
    r"""Outer products summed over positions, :math:`G_b = \sum_p g_{bp} \bar a_{bp}^T`: the weight of a linear map."""

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
        if not self.inputs.numel() or not self.cotangents.numel():
            return _zeros(len(self.inputs), self.inputs)
        if positions * (inputs + outputs) > inputs * outputs:
            return torch.cat(
                [Full(part.gradients()).squared_norms() for part in self._parts(inputs * outputs)]
            )
        dtype = wide_dtype(self.inputs.dtype)
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

    def without(self, samples: Tensor) -> Outer:
        # Both factors: zero times NaN is no zero.
        return Outer(_zeroed(self.inputs, samples), _zeroed(self.cotangents, samples))

    def to(self, dtype: torch.dtype) -> Outer:
        return Outer(self.inputs.to(dtype), self.cotangents.to(dtype))

    def _parts(self, entries: int) -> Iterator[Outer]:
        step = max(_ENTRIES_AT_A_TIME // max(entries, 1), 1)
        for a, g in zip(self.inputs.split(step), self.cotangents.split(step), strict=True):
            yield Outer(a, g)


@dataclass(frozen=True)
class Patches(Contribution):
    """The weight of a convolution: outer products of patches of the input and cotangents, one per position."""

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
            found = _weight_gradient(
                self.inputs.transpose(0, 1).reshape(images, batch * channels, *self.inputs.shape[3:]),
                (batch * self.weight_shape[0], *self.weight_shape[1:]),
                self.cotangents.transpose(0, 1).flatten(1, 2),
                self.stride,
                self.dilation,
                batch * self.groups,
            )
        else:
            found = self._outer().gradients()
        return found.reshape(batch, *self.weight_shape)

    def squared_norms(self) -> Tensor:
        entries = math.prod(self.weight_shape)
        positions = math.prod(self.cotangents.shape[3:]) * self.cotangents.shape[1]
        patch = math.prod(self.weight_shape[1:])
        if not self.inputs.numel() or not self.cotangents.numel():
            return _zeros(len(self.inputs), self.inputs)
        step = max(_ENTRIES_AT_A_TIME // max(entries, positions * patch * self.groups, 1), 1)
        inputs, cotangents = self.inputs.split(step), self.cotangents.split(step)
        parts = [replace(self, inputs=a, cotangents=g) for a, g in zip(inputs, cotangents, strict=True)]
        return torch.cat([part._outer().squared_norms().view(-1, self.groups).sum(1) for part in parts])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        g = self.cotangents
        g = g * weights.to(g.dtype).view(-1, *[1] * (g.dim() - 1))
        return _weight_gradient(
            self.inputs.flatten(0, 1),
            self.weight_shape,
            g.flatten(0, 1),
            self.stride,
            self.dilation,
            self.groups,
        )

    def without(self, samples: Tensor) -> Patches:
        inputs, cotangents = _zeroed(self.inputs, samples), _zeroed(self.cotangents, samples)
        return replace(self, inputs=inputs, cotangents=cotangents)

    def to(self, dtype: torch.dtype) -> Patches:
        return replace(self, inputs=self.inputs.to(dtype), cotangents=self.cotangents.to(dtype))

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
class Rows(Contribution):
    """Rows of a table that were looked up; a row may occur several times in a sample."""

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
        if not self.stays_sparse and wide_dtype(self.values.dtype) is self.values.dtype:
            place = self.samples * self.table[0] + self.rows
            dense = self.values.new_zeros(self.batch * self.table[0], self.table[1])
            return dense.index_add_(0, place, self.values).view(shape)
        at, values = self._merged()
        if self.stays_sparse:
            return torch.sparse_coo_tensor(at, values, shape, is_coalesced=True, check_invariants=False)
        return values.new_zeros(shape).index_put_((at[0], at[1]), values)

    def squared_norms(self) -> Tensor:
        at, values = self._merged()
        return _zeros(self.batch, values).index_add_(0, at[0], Full(values).squared_norms())

    def weighted_sum(self, weights: Tensor) -> Tensor:
        values = self.values * weights.to(self.values.dtype)[self.samples, None]
        if self.stays_sparse:
            at, merged = sparse.merge_entries(self.rows, values, self.table[:1])
            return torch.sparse_coo_tensor(
                at[None], merged, self.table, is_coalesced=True, check_invariants=False
            )
        dtype = wide_dtype(values.dtype)
        total = values.new_zeros(self.table, dtype=dtype)
        return total.index_add_(0, self.rows, values.to(dtype))

    def without(self, samples: Tensor) -> Rows:
        kept = ~samples[self.samples]
        return replace(self, samples=self.samples[kept], rows=self.rows[kept], values=self.values[kept])

    def within(self, mask: Tensor) -> Rows:
        return replace(self, values=torch.where(mask[self.rows], self.values, 0))

    def to(self, dtype: torch.dtype) -> Rows:
        return replace(self, values=self.values.to(dtype))

    def _merged(self) -> tuple[Tensor, Tensor]:
        """Sample and row, (2, m), each pair once and in order; values, (m, D)."""
        at = torch.stack([self.samples, self.rows])
        return sparse.merge_entries(at, self.values, (self.batch, self.table[0]))


def _weight_gradient(
    inputs: Tensor,
    weight_shape: tuple[int, ...],
    cotangents: Tensor,
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """The gradient of a convolution's weight, summed over images; ``inputs`` (N, C, *sizes) are padded."""
    gradient = {
        1: weight_gradients.conv1d_weight,
        2: weight_gradients.conv2d_weight,
        3: weight_gradients.conv3d_weight,
    }[len(stride)]
    found: Tensor = gradient(  # type: ignore[no-untyped-call]
        inputs, weight_shape, cotangents, stride=stride, dilation=dilation, groups=groups
    )
    return found


def joined(parts: Sequence[Contribution]) -> Contribution:
    """One contribution that is the sum of ``parts``, of which there is at least one."""
    if len(parts) == 1:
        return parts[0]
    outer = [part for part in parts if isinstance(part, Outer)]
    if len(outer) == len(parts):
        return Outer(_cat(outer, lambda p: p.inputs), _cat(outer, lambda p: p.cotangents))
    rows = [part for part in parts if isinstance(part, Rows)]
    if len(rows) == len(parts):
        return Rows(
            torch.cat([part.samples for part in rows]),
            torch.cat([part.rows for part in rows]),
            torch.cat([part.values for part in rows]),
            rows[0].batch,
            rows[0].table,
            all(part.stays_sparse for part in rows),
        )
    # A table that is also the weight of a linear map: as in PyTorch, the sum is dense.
    dense = [replace(part, stays_sparse=False) if isinstance(part, Rows) else part for part in parts]
    total = dense[0].gradients()
    for part in dense[1:]:
        total = total + part.gradients()
    return Full(total)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype to add up numbers of ``dtype`` in."""
    if dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    return dtype


_Part = TypeVar("_Part", bound=Contribution)


def _cat(parts: Sequence[_Part], read: Callable[[_Part], Tensor]) -> Tensor:
    return torch.cat([read(part) for part in parts], 1)


def _zeros(batch: int, like: Tensor) -> Tensor:
    dtype = wide_dtype(like.dtype)
    return like.new_zeros(batch, dtype=dtype.to_real() if dtype.is_complex else dtype)


def _zeroed(values: Tensor, samples: Tensor) -> Tensor:
    return values.masked_fill(samples.view(-1, *[1] * (values.dim() - 1)), 0)
