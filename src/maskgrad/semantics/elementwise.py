"""Elementwise operations: an entry of the result is specified where all operands are.

Each row of the tables is one operation: torch's names for it and the filler that keeps it, and its
first two derivatives, finite. A filler of None says that neither the function nor its gradient can
be disturbed by what is under the mask, so nothing needs to be filled.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from maskgrad.semantics.entries import Entries, fill, intersection, specified
from maskgrad.semantics.facts import Operation, functions_named

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OPERATIONS", "elementwise"]

PATTERN = "intersection of the operands' patterns, broadcast"


def elementwise(filler: float | None) -> Callable[..., Any]:
    """The rule of the family: make the operands safe, apply the very function that was called."""

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        mask = intersection(args)
        if kwargs:
            also = intersection(kwargs.values())
            mask = also if mask is None else mask if also is None else mask & also
        if mask is None:
            return function(*args, **kwargs)
        if filler is None:
            args = tuple([a.values if isinstance(a, Entries) else a for a in args])
            kwargs = {k: a.values if isinstance(a, Entries) else a for k, a in kwargs.items()}
        else:
            args = tuple([fill(a, mask, filler) for a in args])
            kwargs = {k: fill(a, mask, filler) for k, a in kwargs.items()}
        return specified(function(*args, **kwargs), mask)

    return body


def per_channel(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``prelu``: the weight belongs to dimension 1 of the input, so its mask is laid along that dimension."""
    names = dict(zip(("input", "weight"), args, strict=False)) | kwargs
    x, weight = names["input"], names["weight"]
    shape = x.values.shape if isinstance(x, Entries) else x.shape
    mask = (
        x.mask if isinstance(x, Entries) else torch.ones((), dtype=torch.bool, device=x.device).expand(shape)
    )
    if isinstance(weight, Entries):
        per_entry = weight.mask
        if per_entry.numel() != 1 and len(shape) > 1:
            per_entry = per_entry.reshape(-1, *(1,) * (len(shape) - 2))
        mask = mask & per_entry.reshape(per_entry.shape if per_entry.numel() != 1 else ())
        weight = torch.where(weight.mask, weight.values, 1)
    return specified(function(fill(x, mask, 1), weight), mask)


#: Finite, with finite derivatives, at 1: the ordinary filler.
AT_ONE = """
    abs|absolute angle arctan|atan asinh|arcsinh ceil conj_physical cos cosh deg2rad digamma|special.psi|special.digamma
    erf erfc exp exp2 expm1 fix|trunc floor frac frexp i0 lgamma|special.gammaln log log10 log1p log2
    nan_to_num rad2deg reciprocal rsqrt sgn sigmoid|special.expit sign sin sinc sinh sqrt square tan tanh round
    special.entr special.erfcx special.i0e special.i1 special.i1e special.log_ndtr special.ndtr
    special.airy_ai special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1
    special.modified_bessel_i0 special.modified_bessel_i1 special.modified_bessel_k0 special.modified_bessel_k1
    special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1 special.spherical_bessel_j0
    special.polygamma|polygamma
    celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 rrelu selu silu
    softplus softshrink softsign tanhshrink threshold
    addcdiv addcmul arctan2|atan2 clamp|clip clamp_max clamp_min complex copysign div|divide|true_divide
    float_power floor_divide fmax fmin fmod gcd heaviside hypot igamma|special.gammainc
    igammac|special.gammaincc lcm ldexp lerp logaddexp logaddexp2 maximum minimum mul|multiply nextafter polar pow
    remainder xlogy special.xlog1py
    special.chebyshev_polynomial_t special.chebyshev_polynomial_u special.chebyshev_polynomial_v
    special.chebyshev_polynomial_w special.hermite_polynomial_h special.hermite_polynomial_he
    special.laguerre_polynomial_l special.legendre_polynomial_p special.shifted_chebyshev_polynomial_t
    special.shifted_chebyshev_polynomial_u special.shifted_chebyshev_polynomial_v special.shifted_chebyshev_polynomial_w
"""

#: Operations whose domain, or a pole of whose derivative, excludes 1.
ELSEWHERE: dict[str, float] = {
    "acos|arccos": 0,
    "acosh|arccosh": 2,
    "asin|arcsin": 0,
    "atanh|arctanh": 0,
    "erfinv": 0,
    "logit": 0.5,
    "special.ndtri": 0.5,
    "mvlgamma|special.multigammaln": 64,  # every entry must exceed (p - 1) / 2
    "special.zeta": 2,
    "unravel_index": 0,
}

#: Linear, or without a gradient: what is under the mask can disturb nothing.
NEEDS_NO_FILLING = """
    add neg|negative positive rsub sub|subtract real imag conj resolve_conj resolve_neg
    signbit isfinite isinf isnan isneginf isposinf isreal isclose
    eq ne|not_equal lt|less le|less_equal gt|greater ge|greater_equal
    logical_and logical_not logical_or logical_xor
    bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
"""

#: The operators of Python behind each operation; their reflected and in-place forms follow from the name.
OPERATORS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "truediv",
    "floor_divide": "floordiv",
    "remainder": "mod",
    "pow": "pow",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
    "bitwise_left_shift": "lshift",
    "bitwise_right_shift": "rshift",
    "bitwise_not": "invert",
    "eq": "eq",
    "ne": "ne",
    "lt": "lt",
    "le": "le",
    "gt": "gt",
    "ge": "ge",
    "neg": "neg",
    "positive": "pos",
    "abs": "abs",
}


def _row(spellings: str, filler: float | None) -> Operation:
    names = spellings.split("|")
    plain = [name.removeprefix("special.") for name in names]
    extra: list[Any] = []
    in_place: list[Any] = []
    reflected: list[tuple[Any, Any]] = []
    dunder = OPERATORS.get(plain[0])
    if dunder:
        direct = getattr(operator, f"__{dunder}__")
        extra.append(direct)
        for form, spellings_found in ((f"__{dunder}__", extra), (f"__i{dunder}__", in_place)):
            for namespace in (operator, torch.Tensor):
                if hasattr(namespace, form):
                    spellings_found.append(getattr(namespace, form))
        if hasattr(torch.Tensor, f"__r{dunder}__"):
            reflected.append((getattr(torch.Tensor, f"__r{dunder}__"), direct))
    if plain[0] == "div":  # Python 2's spelling, under which torch still reports division
        extra.append(torch.Tensor.__div__)
        reflected.append((torch.Tensor.__rdiv__, operator.truediv))
        in_place.append(torch.Tensor.__idiv__)
    found, found_in_place, methods = functions_named(" ".join(plain), tuple(extra))
    return Operation(
        name=names[0],
        family="elementwise",
        functions=found,
        body=elementwise(filler),
        pattern=PATTERN,
        filler=filler,
        in_place=(*found_in_place, *in_place),
        reflected=tuple(reflected),
        methods=methods,
    )


OPERATIONS: tuple[Operation, ...] = (
    *(_row(row, 1) for row in AT_ONE.split()),
    *(_row(row, filler) for row, filler in ELSEWHERE.items()),
    *(_row(row, None) for row in NEEDS_NO_FILLING.split()),
    Operation(
        "native_dropout_backward",
        "elementwise",
        (torch.ops.aten.native_dropout_backward, torch.ops.aten.native_dropout_backward.default),
        elementwise(1),
        PATTERN,
        filler=1,
    ),
    Operation(
        "prelu",
        "elementwise",
        functions_named("prelu")[0],
        per_channel,
        PATTERN,
        filler=1,
        methods=("prelu",),
    ),
)
