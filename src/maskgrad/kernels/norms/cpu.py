r"""Vector norms of the specified entries: sums or maxima of squares, absolute values, or nonzero entries.

Nothing is scaled, as in PyTorch, so squares may overflow. Sums of segments are in float64; powers of
orders other than 0, 1, 2, inf and -inf are PyTorch's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import norms as family
from maskgrad.kernels.cpu import segments
from maskgrad.kernels.cpu.compiler import formula
from maskgrad.kernels.cpu.floating import ordered
from maskgrad.kernels.cpu.lines import line, pair_loops, sums_of_pairs
from maskgrad.kernels.cpu.loops import entrywise, wide, write
from maskgrad.kernels.reductions.cpu import ROOT, SUM, largest_key, sum_of, summing
from maskgrad.kernels.segments.cpu import segment_expand


@formula
def _nonzero(x: Any, zero: Any, one: Any) -> Any:
    return one if x != 0 else zero


@formula
def _size(x: Any, zero: Any, one: Any) -> Any:
    return abs(x)


@formula
def _square(x: Any, zero: Any, one: Any) -> Any:
    return x * x


@formula
def _signed(x: Any, y: Any, share: Any, b: Any, c: Any, d: Any, n: Any) -> Any:
    return share if x > 0 else -share if x < 0 else share * 0


@formula
def _key(x: Any, zero: Any, one: Any) -> Any:
    return ordered(abs(x), 0)


@formula
def _larger(a: Any, b: Any) -> Any:
    return max(a, b)


@formula
def _hits(x: Any, y: Any, norm: Any, n: Any) -> Any:
    return n[1] if (abs(x) == norm) | ((x != x) & (norm != norm)) else n[0], n[0]


@formula
def _signed_hits(x: Any, y: Any, share: Any, norm: Any, c: Any, d: Any, n: Any) -> Any:
    hit = (abs(x) == norm) | ((x != x) & (norm != norm))
    return (share if x > 0 else -share if x < 0 else share * 0) if hit else n[0]


_KEYS = summing(_key, _larger)
_HITS = pair_loops(_hits)
_SIGNED_HITS = entrywise(_signed_hits)
_TERMS = {0: summing(_nonzero), 1: summing(_size), 2: summing(_square)}
_SIGNED = entrywise(_signed)


def masked_norm(
    values: Tensor, mask: Tensor, dim: Sequence[int], keepdim: bool, ord: float
) -> tuple[Tensor, Tensor]:
    if ord not in family.ORDERS:
        return family.masked_norm.reference(values, mask, tuple(dim), keepdim, ord)
    if ord == math.inf:  # the bits of absolute values are integers of the same order
        norm, present = largest_key(_KEYS, values.detach(), mask, dim, keepdim)
        dtype = wide(values)
        bits = norm.to(torch.int64 if dtype == torch.float64 else torch.int32)
        return bits.view(dtype).to(values.dtype), present
    last = ROOT if ord == 2 else SUM
    norm, present = sum_of(_TERMS[int(ord)], values.detach(), mask, dim, keepdim, last)
    return norm.to(values.dtype), present


def masked_norm_backward(grad: Tensor, values: Tensor, mask: Tensor, norm: Tensor, ord: float) -> Tensor:
    if ord == 2:
        grad, norm = grad.to(wide(values)), norm.to(wide(values))
        return line(values, mask, None, torch.where(norm == 0, 0, grad / norm))
    if ord == 1:
        return write(_SIGNED, values, None, mask, grad)
    if ord == 0:
        return torch.zeros_like(values)
    dim = [d for d, (n, k) in enumerate(zip(mask.shape, norm.shape, strict=True)) if n != k]
    norm = norm.to(wide(values))
    ties, _ = sums_of_pairs(_HITS, values, values, mask, norm, dim)
    return write(_SIGNED_HITS, values, None, mask, grad / ties.clamp(min=1), norm)


def segment_norm(values: Tensor, pointers: Tensor, order: Tensor | None, ord: float) -> Tensor:
    dtype = torch.promote_types(values.dtype, torch.float32)
    values = values.detach().to(dtype)
    if math.isinf(ord):
        return segments.extreme(_SEGMENT_SIZES, values, pointers, order, ord > 0).to(dtype)
    kind = ord
    if ord not in (0, 1, 2):
        values, kind = values.abs().pow_(ord), 1
    out = segments.summed(_SEGMENT_TERMS[int(kind)], values, pointers, order, torch.float64)
    if ord not in (0, 1):
        out = out.sqrt_() if ord == 2 else out.pow_(1 / ord)
    if ord < 0:  # an empty sum is 0, and 0 ** (1 / ord) inf
        out.masked_fill_((pointers.diff() == 0).view(-1, *(1,) * (out.ndim - 1)), 0)
    return out.to(dtype)


def segment_norm_backward(
    grad: Tensor, values: Tensor, norm: Tensor, pointers: Tensor, order: Tensor | None, ord: float
) -> Tensor:
    if ord == 0:
        return torch.zeros_like(values)
    values, norm, share = values.detach(), norm.detach(), grad.detach().double()
    powers = values
    if math.isinf(ord):
        return segments.write(_SHARED, values, values, share, norm.to(wide(values)), pointers, order)
    if ord != 1:
        share = torch.where(norm == 0, 0, share * norm.double().pow(1 - ord))
    if ord not in (1, 2):
        powers = values.to(wide(values)).abs().pow_(ord - 1)
    if order is not None:  # scattered access is expensive: write only, without reading before
        out = segment_expand(share.to(wide(values)), pointers, order, len(values))
        if ord not in (1, 2):
            out.mul_(powers.masked_fill_(values == 0, 0))
        return out.mul_(values if ord == 2 else values.sgn()).to(values.dtype)
    loop = _SCALED[int(ord)] if ord in (1, 2) else _SCALED[0]
    return segments.write(loop, values, powers, share, share, pointers, order)


# Signs are numbers, not branches: branches would be mispredicted half of the time.


@formula
def _by_entry(x: Any, power: Any, share: Any, b: Any) -> Any:
    return x * share


@formula
def _by_sign(x: Any, power: Any, share: Any, b: Any) -> Any:
    return share * ((x > 0) - np.float64(x < 0))


@formula
def _by_power(x: Any, power: Any, share: Any, b: Any) -> Any:
    return (share if x == 0 else share * power) * ((x > 0) - np.float64(x < 0))


@formula
def _attains(x: Any, norm: Any) -> Any:
    return 1.0 if (abs(x) == norm) | ((x != x) & (norm != norm)) else 0.0


@formula
def _by_attained(x: Any, power: Any, share: Any, norm: Any) -> Any:
    hit = (abs(x) == norm) | ((x != x) & (norm != norm))
    return share * ((x > 0) - np.float64(x < 0)) if hit else 0.0


@formula
def _wide_square(x: Any, zero: Any, one: Any) -> Any:
    return np.float64(x) * np.float64(x)


_, _SEGMENT_SIZES = segments.extremes(_size)
_SEGMENT_TERMS = {kind: segments.summing(term) for kind, term in enumerate((_nonzero, _size, _wide_square))}
_SCALED = {0: segments.writing(_by_power), 1: segments.writing(_by_sign), 2: segments.writing(_by_entry)}
_SHARED = segments.writing(_by_attained, _attains)
