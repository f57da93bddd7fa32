"""Elementwise operations: an entry of the result is specified where all operands are.

Each row of the tables is one operation: torch's names and the filler at which it and its
first two derivatives are finite. A filler of None means that masked values can affect neither the function nor its
gradient, so nothing is filled. Nor is anything filled where no
derivative can be needed: results under the mask are never read. In a graph gradients are
selected afterwards where that is equivalent: docs/decisions/0039-compiled-lines.md.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from maskgrad.kernels.invariant import in_pieces
from maskgrad.mode import mode
from maskgrad.semantics.dimensions import as_dim
from maskgrad.semantics.entries import (
    Entries,
    Operand,
    fill,
    filled,
    intersection,
    is_position_by_position,
    mask_of,
    specified,
    values_of,
    with_gradient_at,
)
from maskgrad.semantics.facts import Operation, record

PATTERN = "intersection of the operands' patterns, broadcast"
GRADIENT = "zero at unspecified entries"


def elementwise(filler: float | None, looks: bool = False, scales: bool = False) -> Callable[..., Any]:
    """The rule of the family; ``filler`` None: nothing is replaced; ``looks``: the function refuses some values.

    ``scales``: a second operand that is a number is a factor, or a divisor.
    """

    def body(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operands = (*args, *kwargs.values()) if kwargs else args
        mask = intersection(operands)
        if mask is None:
            return function(*args, **kwargs)
        safe = filler
        if filler is not None and not looks:
            how = mode()
            if how == "graph" and is_position_by_position(mask, operands):
                args = tuple([with_gradient_at(mask, a) for a in args])
                kwargs = {k: with_gradient_at(mask, a) for k, a in kwargs.items()}
                return specified(function(*args, **kwargs), mask)
            safe = None if how == "eager" and _needs_no_filling(operands, scales) else filler
        if safe is not None:  # x * x is filled once
            twice = len(args) == 2 and type(args[0]) is type(args[1]) is Entries and args[0][0] is args[1][0]
            args = tuple([fill(a, mask, safe) for a in (args[:1] if twice else args)]) * (1 + twice)
            kwargs = {k: fill(a, mask, safe) for k, a in kwargs.items()}
        else:
            args = tuple([a.values if isinstance(a, Entries) else a for a in args])
            kwargs = {k: a.values if isinstance(a, Entries) else a for k, a in kwargs.items()}
        return specified(in_pieces(function, *args, **kwargs), mask)

    return body


def _needs_no_filling(operands: tuple[Any, ...], scales: bool) -> bool:
    """Return whether no derivative is needed and no value refused: integers may be (division by zero), floats never.

    A moderate factor needs none either: it leaves a gradient of 0, and 0 * inf does not occur. Attention by hand on
    64 x 200 x 8, whose scores are 10 MB, takes 0.9 of the time.
    """
    records = torch.is_grad_enabled()
    for operand in operands:
        if type(operand) is Entries:
            operand = operand.values  # noqa: PLW2901
            if not (operand.is_floating_point() or operand.is_complex()):
                return False
        if isinstance(operand, torch.Tensor) and records and operand.requires_grad:
            factor = operands[-1]
            return scales and type(factor) in (int, float) and 1e-9 < abs(factor) < 1e9
    return True


def prelu(function: Callable[..., Any], input: Operand, weight: Operand) -> Any:
    """The weight belongs to dimension 1 of the input, so its mask is broadcast along that dimension."""
    shape, mask = values_of(input).shape, mask_of(input)
    if isinstance(weight, Entries):
        per_entry = weight.mask
        if per_entry.numel() != 1 and len(shape) > 1:
            per_entry = per_entry.reshape(-1, *(1,) * (len(shape) - 2))
        mask = mask & per_entry.reshape(per_entry.shape if per_entry.numel() != 1 else ())
    return specified(function(fill(input, mask, 1), filled(weight, 1)), mask)


def glu(input: Entries, dim: int = -1) -> Entries:
    """``a * sigmoid(b)`` for the halves a and b of ``dim``: specified where an entry and its gate are."""
    values, mask = input
    half = values.shape[as_dim(dim, values.ndim)] // 2 if values.ndim else 0
    if values.ndim == 0 or values.shape[dim] != 2 * half:
        return Entries(F.glu(values, dim), mask)  # torch raises the error
    first, second = mask.split(half, dim) if half else (mask, mask)
    both = first & second
    return Entries(F.glu(torch.where(torch.cat((both, both), dim), values, 1), dim), both)


#: Finite, with finite derivatives, at 1: the default filler.
AT_ONE = """
    abs|absolute angle arctan|atan asinh|arcsinh cos cosh digamma|special.psi|special.digamma
    erf erfc exp exp2 expm1 frexp i0 lgamma|special.gammaln log log10 log1p log2
    reciprocal rsqrt sgn sigmoid|special.expit sin sinc sinh sqrt square tan tanh
    special.entr special.erfcx special.i0e special.i1 special.i1e special.log_ndtr special.ndtr
    special.airy_ai special.bessel_j0 special.bessel_j1 special.bessel_y0 special.bessel_y1
    special.modified_bessel_i0 special.modified_bessel_i1 special.modified_bessel_k0 special.modified_bessel_k1
    special.scaled_modified_bessel_k0 special.scaled_modified_bessel_k1 special.spherical_bessel_j0
    special.polygamma|polygamma
    celu elu gelu hardsigmoid hardswish leaky_relu logsigmoid mish rrelu selu silu softplus softsign tanhshrink
    addcdiv addcmul arctan2|atan2 copysign div|divide|true_divide
    float_power floor_divide fmod gcd heaviside hypot igamma|special.gammainc
    igammac|special.gammaincc lcm ldexp lerp logaddexp logaddexp2 mul|multiply nextafter polar pow
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

#: Functions that refuse values outside their domain.
LOOK = {"mvlgamma|special.multigammaln", "unravel_index"}

#: Linear, without a gradient, or with one that is selected and never multiplied (0 stays 0): masked values cannot
#: interfere.
NEEDS_NO_FILLING = """
    add neg|negative positive rsub sub|subtract real imag conj resolve_conj resolve_neg
    signbit isfinite isinf isnan isneginf isposinf isreal isclose
    eq ne|not_equal lt|less le|less_equal gt|greater ge|greater_equal
    logical_and logical_not logical_or logical_xor
    bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
    ceil complex conj_physical deg2rad fix|trunc floor frac nan_to_num rad2deg round sign
    clamp|clip clamp_max clamp_min fmax fmin hardshrink hardtanh maximum minimum relu relu6 softshrink
    threshold
"""

#: Python's operator for each operation; their reflected and in-place forms follow from the name.
OPERATORS = {name: name for name in ("add", "sub", "mul", "pow", "eq", "ne", "lt", "le", "gt", "ge", "neg", "abs")} | {
    "div": "truediv", "floor_divide": "floordiv", "remainder": "mod", "positive": "pos", "bitwise_and": "and",
    "bitwise_or": "or", "bitwise_xor": "xor", "bitwise_not": "invert", "bitwise_left_shift": "lshift",
    "bitwise_right_shift": "rshift",
}  # fmt: skip


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
    body = elementwise(filler, spellings in LOOK, plain[0] in ("mul", "div"))
    found = record(
        " ".join(plain),
        "elementwise",
        body,
        PATTERN,
        GRADIENT,
        extra=tuple(extra),
        reflected=tuple(reflected),
    )
    return dataclasses.replace(found, name=names[0], in_place=(*found.in_place, *in_place))


DROPOUT = torch.ops.aten.native_dropout_backward, torch.ops.aten.native_dropout_backward.default
HALVES = "intersection of the patterns of both halves"
GATED = "torch's, where an entry and its gate are specified"
OPERATIONS = (
    *(_row(row, 1) for row in AT_ONE.split()),
    *(_row(row, filler) for row, filler in ELSEWHERE.items()),
    *(_row(row, None) for row in NEEDS_NO_FILLING.split()),
    record("native_dropout_backward", "elementwise", elementwise(1), PATTERN, GRADIENT, functions=DROPOUT),
    record("prelu", "elementwise", prelu, PATTERN, GRADIENT, padded="mask"),
    record("nn.functional.glu", "gating", glu, HALVES, GATED, padded="rows"),
)
