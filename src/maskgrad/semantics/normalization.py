"""Normalisation: statistics of the specified entries, applied to them.

The result is specified where the input is (and weight and bias are). A group without entries stays unspecified, a group
of one entry gives what PyTorch gives on a group of one entry. Half precision is computed in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels.filling.finite import by_rows
from maskgrad.kernels.invariant import is_invariant
from maskgrad.kernels.smallest import is_one, smallest
from maskgrad.semantics.entries import Entries, as_entries, fill, filled, widened
from maskgrad.semantics.facts import of_rule, record
from maskgrad.semantics.norms import vector_norm

PATTERN = "the input's, where weight and bias are specified too"
GRADIENT = "torch's, over the specified entries of each group"

Parameter = Any  # Entries, Tensor or None


class Standardized(NamedTuple):
    """Entries minus their mean, times ``scale``: 0 where unspecified. The statistics keep their dimensions."""

    values: Tensor
    mean: Tensor
    variance: Tensor
    scale: Tensor
    number: Tensor


def standardize(input: Entries, dims: tuple[int, ...], eps: float, centered: bool = True) -> Standardized:
    """``(x - mean) / sqrt(variance + eps)`` over the specified entries of each group that ``dims`` span."""
    return Standardized(*kernels.standardized(input.values, input.mask, dims, eps, centered))


def parameters_mask(mask: Tensor, shape: Sequence[int], *parameters: Parameter) -> Tensor:
    """``mask`` where all masked parameters, broadcast to ``shape``, are specified too."""
    for parameter in parameters:
        if isinstance(parameter, Entries):
            mask = mask & parameter.mask.reshape(shape)
    return mask


def affine(
    values: Tensor,
    scale: Tensor,
    mask: Tensor,
    weight: Parameter,
    bias: Parameter,
    shape: Sequence[int],
    dtype: torch.dtype,
) -> Entries:
    """``values * weight + bias``, rounded once, to ``dtype``; ``values`` were 0 where unspecified, times ``scale``."""
    mask = parameters_mask(mask, shape, weight, bias)
    if weight is not None:
        weight = filled(weight, 1).to(values.dtype).reshape(shape)
        # 0 * inf, of an infinite weight or scale and an unspecified entry, must not reach the other's gradient.
        values = fill(values, mask, 0) * weight
    if bias is not None:
        values = values + filled(bias, 1).to(values.dtype).reshape(shape)
    return Entries(values.to(dtype), mask)


def without_rows(values: Tensor) -> Tensor:
    """An input like ``values`` with a batch of size 0: torch checks the arguments on it and gives the dtype."""
    return values.new_empty((0, *values.shape[1:])) if values.ndim else values


def repeats(mask: Tensor, dims: Sequence[int]) -> bool:
    """Whether groups are known to be complete or empty, as rows of padded sentences: PyTorch's own kernels suffice."""
    few = smallest(mask)
    return all(is_one(few.shape[d]) for d in dims) and not is_invariant()


def _last(input: Entries, normalized_shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(input.mask.ndim - len(normalized_shape), input.mask.ndim))


def layer_norm(
    input: Entries | Tensor,
    normalized_shape: Sequence[int],
    weight: Parameter = None,
    bias: Parameter = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Entries:
    """Standardize over the last dimensions, those of ``normalized_shape``."""
    x = as_entries(input)
    plain = filled(weight, 1), filled(bias, 1)
    dtype = F.layer_norm(x.values.new_empty((0, *x.values.shape)), normalized_shape, *plain, eps).dtype
    dims = _last(x, normalized_shape)
    if eps > 0 and repeats(x.mask, dims):
        values = by_rows(lambda values: F.layer_norm(values, normalized_shape, *plain, eps), *x, *plain)
        return Entries(values, parameters_mask(x.mask, normalized_shape, weight, bias))
    parts = standardize(x, dims, eps)
    return affine(parts.values, parts.scale, x.mask, weight, bias, normalized_shape, dtype)


def native_layer_norm(
    input: Entries | Tensor, normalized_shape: Sequence[int], weight: Parameter, bias: Parameter, eps: float
) -> tuple[Entries, ...]:
    """:func:`layer_norm`, together with the mean and the reciprocal deviation of each group."""
    x = as_entries(input)
    probe = x.values.new_empty((0, *x.values.shape))
    like = torch.native_layer_norm(probe, normalized_shape, filled(weight, 1), filled(bias, 1), eps)
    parts = standardize(x, _last(x, normalized_shape), eps)
    out = affine(parts.values, parts.scale, x.mask, weight, bias, normalized_shape, like[0].dtype)
    # torch gives these two no gradient (native_group_norm's have one)
    mean, scale = parts.mean.detach().to(like[1].dtype), parts.scale.detach().to(like[2].dtype)
    return out, Entries(mean, parts.number > 0), Entries(scale, parts.number > 0)


def rms_norm(
    input: Entries | Tensor,
    normalized_shape: Sequence[int],
    weight: Parameter = None,
    eps: float | None = None,
) -> Entries:
    """Divide by the root of the mean square over the last dimensions."""
    x = as_entries(input)
    safe_weight = filled(weight, 1)
    dtype = F.rms_norm(x.values.new_empty((0, *x.values.shape)), normalized_shape, safe_weight, eps).dtype
    dims = _last(x, normalized_shape)
    if repeats(x.mask, dims):  # a vector of ones has a finite derivative for every eps
        values = by_rows(
            lambda values: F.rms_norm(values, normalized_shape, safe_weight, eps), *x, safe_weight, filler=1
        )
        return Entries(values, parameters_mask(x.mask, normalized_shape, weight))
    eps = torch.finfo(widened(x.values).dtype).eps if eps is None else eps
    parts = standardize(x, dims, eps, centered=False)
    return affine(parts.values, parts.scale, x.mask, weight, None, normalized_shape, dtype)


def channels(x: Tensor) -> tuple[int, ...]:
    """Shape to which a parameter with one entry per channel (dimension 1) broadcasts."""
    return (-1, *(1,) * (x.ndim - 2))


def _grouped(
    x: Entries, groups: int, weight: Parameter, bias: Parameter, eps: float, dtype: torch.dtype
) -> tuple[Entries, Standardized]:
    split = Entries(x.values.unflatten(1, (groups, -1)), x.mask.unflatten(1, (groups, -1)))
    parts = standardize(split, tuple(range(2, split.mask.ndim)), eps)
    values = parts.values.flatten(1, 2)
    return affine(values, parts.scale, x.mask, weight, bias, channels(values), dtype), parts


def group_norm(
    input: Entries | Tensor,
    num_groups: int,
    weight: Parameter = None,
    bias: Parameter = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Entries:
    """Standardize over groups of channels, and over space."""
    x = as_entries(input)
    shape, plain = x.values.shape, (filled(weight, 1), filled(bias, 1))
    dtype = F.group_norm(without_rows(x.values), num_groups, *plain, eps).dtype
    F._verify_batch_size(  # type: ignore[attr-defined]
        [shape[0] * shape[1] // num_groups, num_groups, *shape[2:]]
    )
    return _grouped(x, num_groups, weight, bias, eps, dtype)[0]


def native_group_norm(
    input: Entries | Tensor,
    weight: Parameter,
    bias: Parameter,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Entries, ...]:
    """:func:`group_norm`, together with the mean and the reciprocal deviation of each group."""
    x = as_entries(input)
    like = torch.native_group_norm(
        without_rows(x.values), filled(weight, 1), filled(bias, 1), 0, C, HxW, group, eps
    )
    out, parts = _grouped(x, group, weight, bias, eps, like[0].dtype)
    statistics = [
        Entries(part.flatten(1).to(dtype), (parts.number > 0).flatten(1))
        for part, dtype in ((parts.mean, like[1].dtype), (parts.scale, like[2].dtype))
    ]
    return out, *statistics


def local_response_norm(
    input: Entries, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Entries:
    """Divide by the energy of the neighbouring channels; unspecified neighbours are like those beyond the border."""
    values = input.values
    if values.ndim >= 3 and values.numel():
        values = fill(input, input.mask, 0)
    return Entries(F.local_response_norm(values, size, alpha, beta, k), input.mask)


def normalize(input: Entries, p: float = 2.0, dim: Any = 1, eps: float = 1e-12) -> Entries:
    """Divide by the p-norm of the specified entries, or by ``eps`` if that is larger."""
    norm = vector_norm(input, p, dim, keepdim=True).values.clamp_min(eps)
    return Entries(filled(input) / norm, input.mask)


def renorm(input: Entries, *args: Any, **kwargs: Any) -> Entries:
    """Scale slices down to a norm: zeros add nothing to any norm that torch allows here."""
    return Entries(torch.renorm(filled(input), *args, **kwargs), input.mask)


OPERATIONS = (
    *(
        record(f"nn.functional.{rule.__name__}", "normalization", rule, PATTERN, GRADIENT, padded=padded)
        for padded, rules in (
            ("mask", (layer_norm, rms_norm)),
            ("rows", (group_norm, local_response_norm, normalize)),
        )
        for rule in rules
    ),
    *(of_rule(rule, "normalization", PATTERN, GRADIENT) for rule in (native_layer_norm, native_group_norm)),
    of_rule(renorm, "normalization", PATTERN, GRADIENT, padded="rows"),
)
