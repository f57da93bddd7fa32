"""Functions whose gradients per sample have a form shorter than the gradients: linear maps, convolutions, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from maskgrad.gradients.gradient import widened_dtype
from maskgrad.gradients.per_sample_gradients import Full, Outer, Patches, Rows
from maskgrad.gradients.per_sample_mode import LayerCall, NotByRuleError, PerSampleMode, Rule
from maskgrad.gradients.per_sample_recurrence import RECURRENCES

__all__ = ["RULES"]


class _Linear(LayerCall):
    r"""``F.linear``: :math:`G_b = \sum_p g_{bp} a_{bp}^T`, and :math:`\sum_p g_{bp}` for the bias."""

    def run(self, x: Tensor) -> Tensor:
        return F.linear(x, self.constant(self.weight), self.constant(self.bias))

    def keep(self, x: Tensor, cotangent: Tensor) -> None:
        a = x.reshape(len(x), -1, x.shape[-1]) if x.numel() else x.new_zeros(len(x), 0, x.shape[-1])
        g = cotangent.reshape(len(x), a.shape[1], cotangent.shape[-1])
        self.mode.keep(self.weight, Outer(a.to(g.dtype), g))
        if self.bias is not None:
            self.mode.keep(self.bias, Full(g.sum(1)))


class _Convolution(LayerCall):
    """``F.conv1d`` to ``conv3d``, on the samples' images one after another."""

    def __init__(
        self,
        mode: PerSampleMode,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> None:
        super().__init__(mode, weight, bias)
        self.shape = tuple(mode.parameters[self.weight].shape)
        dims = len(self.shape) - 2
        self.stride, self.dilation, self.groups = _each(stride, dims), _each(dilation, dims), groups
        self.padding = _padding(padding, self.shape[2:], self.dilation)
        self.function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[dims]

    def run(self, x: Tensor) -> Tensor:
        if x.dim() != len(self.shape) + 1:
            raise NotByRuleError  # without a dimension for images; a sample keeps one, unless the model drops it
        weight, bias = self.constant(self.weight), self.constant(self.bias)
        images, before = x.flatten(0, 1), [low for low, _ in self.padding]
        if all(low == high for low, high in self.padding):
            y = self.function(images, weight, bias, self.stride, before, self.dilation, self.groups)
        else:
            y = self.function(self._padded(images), weight, bias, self.stride, 0, self.dilation, self.groups)
        return cast(Tensor, y.unflatten(0, x.shape[:2]))

    def keep(self, x: Tensor, cotangent: Tensor) -> None:
        padded = self._padded(x.flatten(0, 1)).unflatten(0, x.shape[:2]).to(cotangent.dtype)
        found = Patches(padded, cotangent, self.shape, self.stride, self.dilation, self.groups)
        self.mode.keep(self.weight, found)
        if self.bias is not None:
            self.mode.keep(self.bias, Full(cotangent.flatten(3).sum((1, 3))))

    def _padded(self, images: Tensor) -> Tensor:
        if not any(low or high for low, high in self.padding):
            return images
        return F.pad(images, [size for pair in reversed(self.padding) for size in pair])


class _LookUp(LayerCall):
    """``F.embedding``: the rows that were looked up."""

    def __init__(
        self,
        mode: PerSampleMode,
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> None:
        super().__init__(mode, weight)
        rows, width = mode.parameters[self.weight].shape
        self.table = rows, width
        self.padding = padding_idx + rows if padding_idx is not None and padding_idx < 0 else padding_idx
        self.max_norm, self.norm_type = max_norm, norm_type
        self.by_frequency, self.sparse = scale_grad_by_freq, sparse

    def run(self, x: Tensor) -> Tensor:
        weight = self.constant(self.weight)
        return F.embedding(x, weight, self.padding, self.max_norm, self.norm_type)

    def keep(self, x: Tensor, cotangent: Tensor) -> None:
        self.keep_rows(x.reshape(len(x), -1), cotangent.reshape(-1, self.table[1]))

    def keep_rows(self, x: Tensor, values: Tensor) -> None:
        """``values`` (B * n, D) for the rows ``x`` (B, n)."""
        batch, rows = len(x), x.reshape(-1).long()
        samples = torch.arange(batch, device=x.device).repeat_interleave(x.shape[1])
        if self.padding is not None:
            kept = (rows != self.padding).nonzero()[:, 0]
            samples, rows, values = samples[kept], rows[kept], values[kept]
        if self.by_frequency:
            # How often the row occurs in the sample, as if there were no other.
            key = samples * self.table[0] + rows
            _, place, counts = torch.unique(key, return_inverse=True, return_counts=True)
            values = values / counts[place][:, None].to(values.dtype)
        self.mode.keep(self.weight, Rows(samples, rows, values, batch, self.table, self.sparse))


class _Bag(_LookUp):
    """``F.embedding_bag`` on bags of equal size, sum or mean: every row of a bag gets the bag's cotangent."""

    def __init__(self, mode: PerSampleMode, weight: Tensor, reduction: str, *options: Any) -> None:
        super().__init__(mode, weight, *options)
        self.reduction = reduction

    def run(self, x: Tensor) -> Tensor:
        bags = x.reshape(-1, x.shape[-1])
        y = F.embedding_bag(
            bags, self.constant(self.weight), None, self.max_norm, self.norm_type, mode=self.reduction,
            padding_idx=self.padding,
        )  # fmt: skip
        return cast(Tensor, y.unflatten(0, x.shape[:-1]))

    def keep(self, x: Tensor, cotangent: Tensor) -> None:
        size = x.shape[-1]
        if self.reduction == "mean":
            count = size if self.padding is None else (x != self.padding).sum(-1, keepdim=True).clamp(min=1)
            dtype = widened_dtype(cotangent.dtype)
            cotangent = (cotangent.to(dtype) / count).to(cotangent.dtype)
        values = cotangent.unsqueeze(-2).expand(*x.shape, self.table[1])
        self.keep_rows(x.reshape(len(x), -1), values.reshape(-1, self.table[1]))


def _embedding_bag(
    per_sample: PerSampleMode,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    if offsets is not None or input.dim() != 2:
        raise NotByRuleError  # bags of several sizes in one sample
    options = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    if mode != "max" and per_sample_weights is None:
        return _Bag(per_sample, weight, mode, *options).on(input)
    found = _LookUp(per_sample, weight, *options).on(input)
    if padding_idx is not None:
        padding = padding_idx % per_sample.parameters[per_sample.name(weight)].shape[0]
        absent = (input == padding)[..., None]
        if mode == "max":
            largest = found.masked_fill(absent, float("-inf")).max(1).values
            return torch.where(absent.all(1), 0.0, largest).to(found.dtype)
        found = found.masked_fill(absent, 0)
    if mode == "max":
        return found.max(1).values
    assert per_sample_weights is not None
    return torch.einsum("bn,bnd->bd", per_sample_weights, found)


def _attention(
    mode: PerSampleMode,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    operands = (query, key, value, attn_mask)
    plain = all(x is None or type(x) is Tensor for x in operands)
    if dropout_p or not plain or any(x.dim() != 4 for x in operands[:3]):
        raise NotByRuleError

    def attend(*batch: Tensor | None) -> Tensor:
        query, key, value, mask = batch
        assert query is not None
        images = query.shape[1]
        if mask is not None:  # a mask is broadcast, which it is not when the first two dimensions are one
            mask = mask.view(len(mask), *[1] * (5 - mask.dim()), *mask.shape[1:])
            mask = mask.expand(-1, images, *mask.shape[2:])
        flat: list[Any] = [x if x is None else x.flatten(0, 1) for x in (query, key, value, mask)]
        given: dict[str, Any] = {"is_causal": is_causal, **options}
        found: Tensor = F.scaled_dot_product_attention(*flat, **given)
        return cast(Tensor, found.unflatten(0, (-1, images)))

    # vmap would call the fused kernel sample by sample.
    return mode.on_all_samples(attend, *operands)


def _each(value: Any, dims: int) -> tuple[int, ...]:
    if isinstance(value, Sequence):
        return tuple(value) if len(value) == dims else tuple(value) * dims
    return (value,) * dims


def _padding(padding: Any, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> list[tuple[int, int]]:
    """Before and after, for each dimension."""
    if padding == "valid":
        return [(0, 0)] * len(kernel)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [(n // 2, n - n // 2) for n in total]
    return [(n, n) for n in _each(padding, len(kernel))]


RULES: Mapping[Any, Rule] = {
    F.linear: _Linear.rule,
    F.conv1d: _Convolution.rule,
    F.conv2d: _Convolution.rule,
    F.conv3d: _Convolution.rule,
    F.embedding: _LookUp.rule,
    F.embedding_bag: _embedding_bag,
    F.scaled_dot_product_attention: _attention,
    **RECURRENCES,
}
