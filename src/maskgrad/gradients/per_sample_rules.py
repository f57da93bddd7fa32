"""The table of rules: functions whose gradients per sample have a compact form, or need our own.

A rule replaces the function, on one sample's operands under ``vmap``, with the mode as first argument.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from maskgrad.gradients.gradient import widened_dtype
from maskgrad.gradients.per_sample_factors import Full, Outer, Patches, Rows, SampleGradients
from maskgrad.gradients.per_sample_mode import NotByRuleError, PerSampleMode, Rule
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.semantics.embeddings import renormalise

__all__ = ["DIFFERENTIABLE", "RULES"]

Named = Iterator[tuple[str, SampleGradients]]
State = tuple[Tensor, ...]


def _linear(mode: PerSampleMode, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r"""``F.linear``: :math:`G_b = \sum_p g_{bp} a_{bp}^T`, and :math:`\sum_p g_{bp}` for the bias."""
    (w, weight), (b, bias) = mode.parameter(weight), mode.parameter(bias)

    def factors(g: Tensor, x: Tensor) -> Named:
        a = x.reshape(len(x), -1, x.shape[-1]) if x.numel() else x.new_zeros(len(x), 0, x.shape[-1])
        g = g.reshape(len(x), a.shape[1], g.shape[-1])
        yield w, Outer(a.to(g.dtype), g)
        if bias is not None:
            yield b, Full(g.sum(1))

    found: Tensor = mode.layer(lambda x: F.linear(x, weight, bias), factors, input)
    return found


def _convolution(
    mode: PerSampleMode,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """``F.conv1d`` to ``conv3d``, on the concatenated images of all samples."""
    (w, weight), (b, bias) = mode.parameter(weight), mode.parameter(bias)
    shape, kernel = tuple(weight.shape), weight.shape[2:]
    stride, dilation = _each(stride, len(kernel)), _each(dilation, len(kernel))
    sides = _padding(padding, kernel, dilation)
    even = all(low == high for low, high in sides)
    around: Any = [low for low, _ in sides] if even else 0
    function: Any = (F.conv1d, F.conv2d, F.conv3d)[len(kernel) - 1]

    def padded(x: Tensor) -> Tensor:
        images = x.flatten(0, 1)
        return (
            F.pad(images, [n for pair in reversed(sides) for n in pair]) if any(map(any, sides)) else images
        )

    def run(x: Tensor) -> Tensor:
        if x.dim() != len(shape) + 1:
            raise NotByRuleError  # without a dimension for images; a sample keeps one, unless the model drops it
        images = x.flatten(0, 1) if even else padded(x)
        found: Tensor = function(images, weight, bias, stride, around, dilation, groups)
        return cast(Tensor, found.unflatten(0, x.shape[:2]))

    def factors(g: Tensor, x: Tensor) -> Named:
        images = padded(x).unflatten(0, x.shape[:2]).to(g.dtype)
        yield w, Patches(images, g, shape, stride, dilation, groups)
        if bias is not None:
            yield b, Full(g.flatten(3).sum((1, 3)))

    found: Tensor = mode.layer(run, factors, input)
    return found


def _each(value: Any, dims: int) -> tuple[int, ...]:
    if isinstance(value, Sequence):
        return tuple(value) if len(value) == dims else tuple(value) * dims
    return (value,) * dims


def _padding(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> list[tuple[int, int]]:
    """Return the padding before and after, for each dimension."""
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return [(n // 2, n - n // 2) for n in total]
    return [(n, n) for n in _each(0 if padding == "valid" else padding, len(kernel))]


def _embedding(mode: PerSampleMode, input: Any, weight: Tensor, *options: Any, **named: Any) -> Any:
    """``F.embedding``, of indices that may be masked."""
    if not isinstance(input, MaskedTensor):
        return _looked_up(mode, input, None, weight, *options, **named)
    known = input.mask
    rows = _looked_up(mode, input.filled(0), known, weight, *options, **named)
    return masked(rows, known.unsqueeze(-1))


def _looked_up(
    mode: PerSampleMode,
    indices: Tensor,
    known: Tensor | None,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Return the rows of a table at all ``indices``; the gradient has those that are ``known``."""
    name, table = mode.parameter(weight)
    height, width = table.shape
    padding = None if padding_idx is None else padding_idx % height

    def run(x: Tensor, known: Tensor | None = None) -> Tensor:
        if known is None or max_norm is None:
            return F.embedding(x, table, padding, max_norm, norm_type)
        renormalise(table, x, known, max_norm, norm_type)
        return F.embedding(x, table, padding)

    def factors(g: Tensor, x: Tensor, known: Tensor | None = None) -> Named:
        samples = torch.arange(len(x), device=x.device).repeat_interleave(x.shape[1:].numel())
        rows, values = x.reshape(-1).long(), g.reshape(-1, width)
        taken = None if known is None else known.reshape(-1)
        if padding is not None:
            taken = rows != padding if taken is None else taken & (rows != padding)
        if taken is not None:
            kept = taken.nonzero()[:, 0]
            samples, rows, values = samples[kept], rows[kept], values[kept]
        if scale_grad_by_freq:
            # Count of the row within the sample.
            _, at, counts = torch.unique(samples * height + rows, return_inverse=True, return_counts=True)
            values = values / counts[at][:, None].to(values.dtype)
        yield name, Rows(samples, rows, values, len(x), (height, width), sparse)

    found: Tensor = mode.layer(run, factors, indices, *(() if known is None else (known,)))
    return found


def _embedding_bag(
    per_sample: PerSampleMode,
    input: Any,
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
) -> Any:
    """``F.embedding_bag`` on bags of equal size: sum, mean or maximum of the rows that are looked up."""
    if offsets is not None or input.dim() != 2 or isinstance(per_sample_weights, MaskedTensor):
        raise NotByRuleError  # bags of several sizes in one sample
    known, indices = (input.mask, input.filled(0)) if isinstance(input, MaskedTensor) else (None, input)
    options = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    rows = _looked_up(per_sample, indices, known, weight, *options)
    taken = known
    if padding_idx is not None:
        real = indices != padding_idx % len(per_sample.parameter(weight)[1])
        taken = real if known is None else known & real
    pooled = _pooled(rows, taken, mode, per_sample_weights)
    return pooled if known is None else masked(pooled, known.any(1, keepdim=True))


def _pooled(rows: Tensor, taken: Tensor | None, mode: str, weights: Tensor | None) -> Tensor:
    """Return sum, mean or maximum (bags, D) of the rows (bags, n, D) in ``taken`` (bags, n); 0 if empty."""
    if taken is None and weights is None and mode != "max" and rows.shape[1]:
        return rows.mean(1) if mode == "mean" else rows.sum(1)
    taken = rows.new_ones(rows.shape[:2], dtype=torch.bool) if taken is None else taken
    present = taken.unsqueeze(-1)
    if mode == "max":
        largest = rows.masked_fill(~present, float("-inf")).max(1).values
        return torch.where(present.any(1), largest, 0.0).to(rows.dtype)
    rows = rows.masked_fill(~present, 0)
    if weights is not None:
        return torch.einsum("bn,bnd->bd", weights.masked_fill(~taken, 0), rows)
    total = rows.sum(1, dtype=widened_dtype(rows.dtype))
    return (total / taken.sum(1, keepdim=True).clamp(min=1) if mode == "mean" else total).to(rows.dtype)


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
    """``F.scaled_dot_product_attention``, which ``vmap`` would call sample by sample."""
    operands = (query, key, value, attn_mask)
    plain = all(x is None or type(x) is Tensor for x in operands)
    if dropout_p or not plain or any(x.dim() != 4 for x in operands[:3]):
        raise NotByRuleError

    def attend(*batch: Tensor | None) -> Tensor:
        images, mask = cast(Tensor, batch[0]).shape[1], batch[3]
        if mask is not None:  # a mask is broadcast, which it is not when the first two dimensions are one
            mask = mask.view(len(mask), *[1] * (5 - mask.dim()), *mask.shape[1:])
            mask = mask.expand(-1, images, *mask.shape[2:])
        flat: list[Any] = [x if x is None else x.flatten(0, 1) for x in (*batch[:3], mask)]
        given: dict[str, Any] = {"is_causal": is_causal, **options}
        return cast(Tensor, F.scaled_dot_product_attention(*flat, **given).unflatten(0, (-1, images)))

    return mode.on_all_samples(attend, *operands)


# Recurrent networks are written out step by step: fused ones give no gradient per sample, and do not support ``vmap``.
# A step gets the contributions of input and old state to the gates, and the old state, (h,) or (h, c).


def _lstm_step(from_input: Tensor, from_state: Tensor, state: State) -> State:
    i, f, g, o = (from_input + from_state).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_step(from_input: Tensor, from_state: Tensor, state: State) -> State:
    (r, z, n), (old_r, old_z, old_n) = from_input.chunk(3, -1), from_state.chunk(3, -1)
    update = (z + old_z).sigmoid()
    new = (n + (r + old_r).sigmoid() * old_n).tanh()
    return (new + update * (state[0] - new),)


def _tanh_step(from_input: Tensor, from_state: Tensor, _: State) -> State:
    return ((from_input + from_state).tanh(),)


def _relu_step(from_input: Tensor, from_state: Tensor, _: State) -> State:
    return ((from_input + from_state).relu(),)


def _cell(
    step: Callable[..., State],
    mode: PerSampleMode,
    input: Tensor,
    hx: Any,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Any:
    state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    with mode:
        new = step(F.linear(input, w_ih, b_ih), F.linear(state[0], w_hh, b_hh), state)
    return new[0] if isinstance(hx, Tensor) else new


def _network(
    step: Callable[..., State],
    mode: PerSampleMode,
    input: Tensor,
    hx: Any,
    params: Any,
    has_biases: Any,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool | None = None,
) -> Any:
    """Layers, directions, dropout between layers, projections of an LSTM, as in ``torch.lstm`` and the like."""
    if batch_first is None or isinstance(params, bool):
        raise NotByRuleError  # packed sequences, whose lengths are data
    start = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    directions = 2 if bidirectional else 1
    size = len(params) // (num_layers * directions)
    sequence = input.transpose(0, 1) if batch_first else input
    last: list[State] = []
    with mode:
        for layer in range(num_layers):
            outputs = []
            for backwards in range(directions):
                weights = params[len(last) * size : (len(last) + 1) * size]
                state = tuple(s[len(last)] for s in start)
                found, state = _along(step, sequence, state, weights, bool(has_biases), bool(backwards))
                outputs.append(found)
                last.append(state)
            sequence = torch.cat(outputs, -1) if bidirectional else outputs[0]
            if dropout and train and layer < num_layers - 1:
                sequence = F.dropout(sequence, dropout, True)
    output = sequence.transpose(0, 1) if batch_first else sequence
    return (output, *(torch.stack(kept) for kept in zip(*last, strict=True)))


def _along(
    step: Callable[..., State],
    sequence: Tensor,
    state: State,
    weights: Sequence[Tensor],
    has_biases: bool,
    backwards: bool,
) -> tuple[Tensor, State]:
    """Return the outputs of one layer in one direction, in the order of the inputs (time first), and its last state."""
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = weights[2:4] if has_biases else (None, None)
    projection = weights[4:] if has_biases else weights[2:]
    from_inputs = F.linear(sequence, w_ih, b_ih)
    steps = range(len(sequence))
    outputs = []
    for time in reversed(steps) if backwards else steps:
        state = step(from_inputs[time], F.linear(state[0], w_hh, b_hh), state)
        if projection:
            state = (F.linear(state[0], projection[0]), *state[1:])
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs), state


_STEPS = {"lstm": _lstm_step, "gru": _gru_step, "rnn_tanh": _tanh_step, "rnn_relu": _relu_step}
#: those whose result can be differentiated twice
DIFFERENTIABLE: Mapping[Any, Rule] = {
    **{getattr(torch, name): functools.partial(_network, step) for name, step in _STEPS.items()},
    **{getattr(torch, f"{name}_cell"): functools.partial(_cell, step) for name, step in _STEPS.items()},
}
RULES: Mapping[Any, Rule] = {
    F.linear: _linear,
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), _convolution),
    **dict.fromkeys((F.embedding, (MaskedTensor, F.embedding)), _embedding),
    **dict.fromkeys((F.embedding_bag, (MaskedTensor, F.embedding_bag)), _embedding_bag),
    F.scaled_dot_product_attention: _attention,
    **DIFFERENTIABLE,
}
