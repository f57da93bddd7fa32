"""Functions of numbers without an operator in ONNX."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["BODIES"]


def signbit(x: Tensor) -> Tensor:
    """True for −0.0, whose reciprocal is −∞; of NaN the sign is lost."""
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
    """√(x² + y²) without overflow: the larger one is taken out of the root. Infinite beside NaN, too, as in C."""
    x, y = x.abs(), y.abs()
    large, small = torch.maximum(x, y), torch.minimum(x, y)
    ratio = small / torch.where((large == 0) | torch.isinf(large), 1.0, large)
    root = large * torch.sqrt(1.0 + ratio * ratio)
    return torch.where(torch.isinf(x) | torch.isinf(y), float("inf"), root)


def fmax(x: Tensor, y: Tensor) -> Tensor:
    """The larger one; NaN only if both are."""
    return _unless_nan(torch.maximum(x, y), x, y)


def fmin(x: Tensor, y: Tensor) -> Tensor:
    """The smaller one; NaN only if both are."""
    return _unless_nan(torch.minimum(x, y), x, y)


def _unless_nan(both: Tensor, x: Tensor, y: Tensor) -> Tensor:
    if not both.is_floating_point():
        return both
    x, y = x.to(both.dtype), y.to(both.dtype)
    return torch.where(torch.isnan(x), y, torch.where(torch.isnan(y), x, both))


def rrelu_with_noise(
    x: Tensor,
    noise: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """Outside training the slope is the mean of what it may be."""
    return NotImplemented if training else torch.where(x <= 0, x * ((lower + upper) / 2), x)


def rrelu(
    x: Tensor, lower: float = 0.125, upper: float = 1 / 3, training: bool = False, generator: Any = None
) -> Any:
    """The same without the noise that training would use."""
    return rrelu_with_noise(x, x, lower, upper, training)


def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mantissa in [½, 1) and exponent; numbers near the smallest are made larger first."""
    size = x.abs()
    tiny = size < 2.0**-60
    scaled = torch.where(tiny, size * 2.0**60, size)
    ordinary = (x != 0) & torch.isfinite(x)
    scaled = torch.where(ordinary, scaled, 1.0)
    exponent = torch.floor(torch.log2(scaled)) + 1
    # powers of two in two steps, either of which is a number; a logarithm may be off by one
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
    """Euclid's algorithm, as many steps as the largest numbers of the dtype may need."""
    dtype = torch.promote_types(x.dtype, y.dtype)
    x, y = x.to(torch.int64).abs(), y.to(torch.int64).abs()
    x, y = torch.broadcast_tensors(x, y)
    for _ in range(GCD_STEPS[dtype]):
        rest = torch.remainder(x, torch.where(y == 0, 1, y))
        x, y = torch.where(y == 0, x, y), torch.where(y == 0, 0, rest)
    return x.to(dtype)


#: Of two numbers below 2^bits, Fibonacci numbers need most steps.
GCD_STEPS = {
    dtype: math.ceil(bits * math.log(2) / math.log((1 + math.sqrt(5)) / 2)) + 1
    for dtype, bits in (
        (torch.int8, 8),
        (torch.uint8, 8),
        (torch.int16, 16),
        (torch.int32, 32),
        (torch.int64, 64),
    )
}


def lcm(x: Tensor, y: Tensor) -> Tensor:
    """|x · y| by what divides both."""
    divisor = gcd(x, y)
    return torch.abs(torch.div(x, torch.where(divisor == 0, 1, divisor), rounding_mode="floor") * y).to(
        divisor.dtype
    )


BODIES = {
    "signbit": signbit,
    "copysign.Tensor copysign.Scalar": copysign,
    "hypot": hypot,
    "fmax": fmax,
    "fmin": fmin,
    "rrelu": rrelu,
    "rrelu_with_noise rrelu_with_noise_functional": rrelu_with_noise,
    "frexp.Tensor": frexp,
    "gcd": gcd,
    "lcm": lcm,
}
