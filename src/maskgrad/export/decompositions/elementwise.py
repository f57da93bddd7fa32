"""Elementwise functions, running products and extrema, and attention without an operator in ONNX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["BODIES"]


def signbit(x: Tensor) -> Tensor:
    """True for −0.0, whose reciprocal is −∞; the sign of NaN is lost."""
    if not x.is_floating_point():
        return x < 0
    return torch.where(x == 0, torch.reciprocal(x) < 0, x < 0)


def copysign(x: Tensor, sign: Tensor | float) -> Tensor:
    """|x| with the sign of the other."""
    if not isinstance(sign, Tensor):
        size = x.abs().to(torch.result_type(x, sign))
        if not size.is_floating_point():
            size = size.to(torch.get_default_dtype())
        return -size if math.copysign(1.0, sign) < 0 else size
    dtype = torch.result_type(x, sign)
    size = x.to(dtype if dtype.is_floating_point else torch.get_default_dtype()).abs()
    return torch.where(signbit(sign), -size, size)


def hypot(x: Tensor, y: Tensor) -> Tensor:
    """√(x² + y²) without overflow: with the larger one factored out of the root. Infinity wins over NaN, as in C."""
    x, y = x.abs(), y.abs()
    large, small = torch.maximum(x, y), torch.minimum(x, y)
    ratio = small / torch.where((large == 0) | torch.isinf(large), 1.0, large)
    root = large * torch.sqrt(1.0 + ratio * ratio)
    return torch.where(torch.isinf(x) | torch.isinf(y), float("inf"), root)


def _ignoring_nan(extremum: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """``fmax`` or ``fmin``: NaN only where both are."""

    def body(x: Tensor, y: Tensor) -> Tensor:
        both = extremum(x, y)
        if not both.is_floating_point():
            return both
        x, y = x.to(both.dtype), y.to(both.dtype)
        return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, both))

    return body


def rrelu_with_noise(
    x: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """In evaluation the slope is the mean of its range."""
    return NotImplemented if training else torch.where(x <= 0, x * ((lower + upper) / 2), x)


def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissa in [½, 1) and exponent; subnormal values are scaled up first."""
    size = x.abs()
    tiny = size < 2.0**-60
    scaled = torch.where(tiny, size * 2.0**60, size)
    ordinary = (x != 0) & torch.isfinite(x)
    scaled = torch.where(ordinary, scaled, 1.0)
    exponent = torch.floor(torch.log2(scaled)) + 1
    # powers of two in two steps, each of which is representable; a logarithm may be off by one
    exponent = exponent + torch.where(_by_power(scaled, exponent) >= 1, 1.0, 0.0)
    exponent = exponent - torch.where(_by_power(scaled, exponent) < 0.5, 1.0, 0.0)
    mantissa = torch.where(signbit(x), -1.0, 1.0) * _by_power(scaled, exponent)
    exponent = exponent - torch.where(tiny, 60.0, 0.0)
    return torch.where(ordinary, mantissa, x), torch.where(ordinary, exponent, 0.0).to(torch.int32)


def _by_power(x: Tensor, exponent: Tensor) -> Tensor:
    """The product with 2^−exponent."""
    half = torch.floor(exponent / 2)
    return x * torch.exp2(-half) * torch.exp2(half - exponent)


def gcd(x: Tensor, y: Tensor) -> Tensor:
    """Euclid's algorithm, with as many steps as the dtype may need."""
    dtype = torch.promote_types(x.dtype, y.dtype)
    x, y = x.to(torch.int64).abs(), y.to(torch.int64).abs()
    x, y = torch.broadcast_tensors(x, y)
    for _ in range(GCD_STEPS[dtype]):
        rest = torch.remainder(x, torch.where(y == 0, 1, y))
        x, y = torch.where(y == 0, x, y), torch.where(y == 0, 0, rest)
    return x.to(dtype)


#: Fibonacci numbers need the most steps of all numbers below 2^bits.
GCD_STEPS = {
    dtype: math.ceil(bits * math.log(2) / math.log((1 + math.sqrt(5)) / 2)) + 1
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
    for bits in (torch.iinfo(dtype).bits,)
}


def lcm(x: Tensor, y: Tensor) -> Tensor:
    """|x · y| divided by the gcd."""
    divisor = gcd(x, y)
    return torch.abs(torch.div(x, torch.where(divisor == 0, 1, divisor), rounding_mode="floor") * y).to(
        divisor.dtype
    )


def where(condition: Tensor, x: Any, y: Any) -> Any:
    """For a tensor and a scalar of a wider kind, or two scalars: determine the common dtype first."""
    if any(isinstance(operand, (torch.SymInt, torch.SymFloat, torch.SymBool)) for operand in (x, y)):
        return NotImplemented
    dtype = torch.result_type(x, y)
    if any(isinstance(operand, Tensor) and operand.dtype == dtype for operand in (x, y)):
        return NotImplemented
    if isinstance(y, Tensor):
        return torch.where(condition, x, y.to(dtype))
    first = x.to(dtype) if isinstance(x, Tensor) else torch.full((), x, dtype=dtype, device=condition.device)
    return torch.where(condition, first, y)


def entropy(x: Tensor) -> Tensor:
    """−x log x, 0 at 0 and −∞ below; PyTorch selects between two scalars for that."""
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    known = torch.where(x > 0, -x * torch.log(x), float("-inf"))
    return torch.where(torch.isnan(x), x, torch.where(x == 0, 0.0, known))


def _scan(
    x: Tensor,
    dim: int,
    combine: Callable[[Tensor, Tensor], Tensor],
    reduce: Callable[[Tensor], Tensor],
    neutral: float,
) -> Tensor:
    """Combine all entries up to each one, by doubling: after k rounds an entry covers the last 2ᵏ.

    If the size is unknown at export, each result is reduced separately, over a triangle.
    """
    x, size = x.movedim(dim, -1), x.shape[dim]
    if isinstance(size, int):
        reach = 1
        while reach < size:
            before = torch.full_like(x[..., :reach], neutral)
            x = combine(x, torch.cat([before, x[..., :-reach]], -1))
            reach *= 2
    else:
        places = torch.arange(size, device=x.device)
        rest = torch.full((), neutral, dtype=x.dtype, device=x.device)
        x = reduce(torch.where(places[:, None] >= places, x[..., None, :], rest))
    return x.movedim(-1, dim)


def cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Products."""
    if dtype is None:
        dtype = x.dtype if x.is_floating_point() else torch.int64
    x = x.to(dtype)
    return _scan(x, dim, torch.mul, lambda rows: rows.prod(-1), 1) if x.ndim else x.clone()


def vander(x: Tensor, *, N: int | None = None) -> Tensor:
    """Powers 0, 1, … of each entry, which are products of its copies."""
    number = x.shape[-1] if N is None else N
    copies = x[..., None].expand(*x.shape, number - 1)
    return torch.cat([torch.ones_like(x[..., None]), cumprod(copies, -1)], -1)


def cummax(x: Tensor, dim: int, *, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Largest (or smallest) entries so far, and their last positions."""
    if not x.ndim:
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    combine, reduce = (torch.maximum, torch.amax) if largest else (torch.minimum, torch.amin)
    if x.is_floating_point():
        neutral = -math.inf if largest else math.inf
    else:
        neutral = torch.iinfo(x.dtype).min if largest else torch.iinfo(x.dtype).max
    values = _scan(x, dim, combine, lambda rows: reduce(rows, -1), neutral)
    is_it = x == values
    if x.is_floating_point():
        is_it = is_it | (torch.isnan(x) & torch.isnan(values))
    shape = [1] * x.ndim
    shape[dim] = -1
    places = torch.arange(x.shape[dim], device=x.device).reshape(shape)
    seen = torch.where(is_it, places, 0)
    return values, _scan(seen, dim, torch.maximum, lambda rows: rows.amax(-1), 0)


def _over_all(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """``amax`` and ``amin`` without dimensions, which PyTorch's exporter requires."""

    def body(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
        if len(dim):
            return NotImplemented
        return function(x, tuple(range(x.ndim)), keepdim) if x.ndim else x.clone()

    return body


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(Q Kᵀ · scale + mask) V, where rows without keys are zero as in PyTorch, not NaN or a mean."""
    if dropout_p:
        return NotImplemented
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = torch.matmul(query * factor, key.transpose(-2, -1))
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device)[:, None]
        allowed = rows >= torch.arange(key.shape[-2], device=query.device)[None, :]
    elif attn_mask is None:
        return torch.matmul(torch.softmax(scores, -1), value)
    elif attn_mask.dtype == torch.bool:
        allowed = attn_mask
    else:
        scores = scores + attn_mask
        allowed = scores != float("-inf")
    weights = safe_softmax(torch.where(allowed, scores, float("-inf")), -1)
    return torch.matmul(weights.to(value.dtype), value)


def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax that is zero for a row of −∞."""
    x = x if dtype is None else x.to(dtype)
    largest = x.amax(dim, keepdim=True)
    powers = torch.exp(x - torch.where(largest == float("-inf"), 0.0, largest))
    total = powers.sum(dim, keepdim=True)
    return powers / torch.where(total == 0, 1.0, total)


BODIES = {
    "signbit": signbit,
    "copysign.Tensor copysign.Scalar": copysign,
    "hypot": hypot,
    "fmax": _ignoring_nan(torch.maximum),
    "fmin": _ignoring_nan(torch.minimum),
    "rrelu": lambda x, *args, **options: rrelu_with_noise(x, x, *args, **options),
    "rrelu_with_noise rrelu_with_noise_functional": rrelu_with_noise,
    "frexp.Tensor": frexp,
    "gcd": gcd,
    "lcm": lcm,
    "where.Scalar where.ScalarOther where.ScalarSelf": where,
    "special_entr": entropy,
    "cumprod": cumprod,
    "linalg_vander": vander,
    "cummax": cummax,
    "cummin": lambda x, dim: cummax(x, dim, largest=False),
    "amax": _over_all(torch.amax),
    "amin": _over_all(torch.amin),
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "_safe_softmax": safe_softmax,
}
