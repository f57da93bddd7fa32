"""Chains of matrix products, and linear algebra made of elementwise steps, or of one sum."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from maskgrad.errors import UndefinedOnMaskedError
from maskgrad.semantics.contractions import GRADIENT, PATTERN, multiply
from maskgrad.semantics.entries import Entries, Operand, all_specified, fill, safe, values_of
from maskgrad.semantics.facts import of_rule, record
from maskgrad.semantics.numbers import Number
from maskgrad.semantics.reductions import sum

# Products of entries along the paths i-j-k-l add up step by step, and a path with only specified factors exists exactly
# if one leads from i to k and the last factor is specified: contractions of two factors compose, masks included.


def times(left: Operand, right: Operand) -> Operand:
    """One step of a chain."""
    if isinstance(left, Entries) or isinstance(right, Entries):
        return multiply(left, right)
    return torch.matmul(left, right)


def multi_dot(tensors: Sequence[Operand]) -> Entries:
    """``linalg.multi_dot``, from the left; a vector is a row at the start, and a column at the end."""
    if len(tensors) < 2:
        raise RuntimeError(f"multi_dot(): expected at least 2 tensors but got {len(tensors)}")
    return _chain(tensors, "multi_dot", (1, 2))


def chain_matmul(*matrices: Operand) -> Entries:
    """``chain_matmul``: matrices as separate arguments, at least one."""
    return _chain(matrices, "chain_matmul", (2,))


def _chain(matrices: Sequence[Operand], name: str, ends: tuple[int, ...]) -> Entries:
    for i, matrix in enumerate(matrices):
        allowed = ends if i in (0, len(matrices) - 1) else (2,)
        if values_of(matrix).ndim not in allowed:
            ranks = " or ".join(f"{rank}D" for rank in allowed)
            raise RuntimeError(f"{name}(): tensor {i} must be {ranks} but got {values_of(matrix).ndim}D")
    return functools.reduce(times, matrices)  # type: ignore[return-value]  # at least one is masked


def matrix_power(input: Entries, n: int) -> Entries:
    """``n`` factors of the same matrices; the identity, which is specified, for ``n = 0``."""
    values, mask = input
    if values.ndim < 2 or values.shape[-1] != values.shape[-2]:
        torch.linalg.matrix_power(values, 0)  # torch raises the errors
    if n < 0:
        raise UndefinedOnMaskedError(
            f"linalg.matrix_power(n={n})",
            "a matrix with missing entries has no inverse",
            "Fill it first, x.filled(value), or take a fully specified block.",
        )
    if n == 0:
        identity = torch.linalg.matrix_power(torch.where(mask, values, 0), 0)
        return Entries(identity, torch.ones_like(mask))
    result, power = None, input
    while True:  # squares, as in torch
        if n % 2:
            result = power if result is None else multiply(result, power)
        n //= 2
        if not n:
            assert result is not None
            return result
        power = multiply(power, power)


def cross(function: Callable[..., Any], input: Operand, other: Operand, dim: int | None = None) -> Entries:
    """``a_j b_k - a_k b_j``: a difference is specified where both of its products are."""
    if dim is None and function is torch.linalg.cross:
        dim = -1
    values = function(safe(input), safe(other), **({} if dim is None else {"dim": dim}))
    if dim is None:  # torch.cross takes the first dimension of size 3
        dim = list(values_of(input).shape).index(3)
    both = all_specified(input, other).expand(values.shape)
    return Entries(values, both.roll(1, dim) & both.roll(-1, dim))


def trace(input: Entries) -> Entries:
    """The sum of the specified entries of the diagonal."""
    values, mask = input
    if values.ndim != 2 or values.dtype == torch.bool:
        torch.trace(values)  # torch raises the errors
    return sum(Entries(values.diagonal(), mask.diagonal()))


def vander(function: Callable[..., Any], input: Entries, *args: Any, **kwargs: Any) -> Entries:
    """``vander``: the powers of an entry are specified where the entry is."""
    values = function(fill(input, input.mask, 1), *args, **kwargs)
    return Entries(values, input.mask.unsqueeze(-1).expand(values.shape))


CROSS = (
    "specified where the four entries that make the component are",
    "that of the difference of two products",
)
TRACE = "a plain scalar", "the incoming gradient at each specified entry of the diagonal"
POWER = "specified where a path of specified entries leads from row to column; everywhere for n = 0"
POWERS = "that of the vector, for each of the powers", "that of the powers"

OPERATIONS = (
    record("linalg.multi_dot", "contractions", multi_dot, PATTERN, GRADIENT, extra=(torch.linalg.multi_dot,)),
    of_rule(chain_matmul, "contractions", PATTERN, GRADIENT),
    record(
        "linalg.matrix_power matrix_power",
        "contractions",
        matrix_power,
        POWER,
        GRADIENT,
        functions=(torch.linalg.matrix_power, torch.matrix_power, torch.Tensor.matrix_power),
    ),
    of_rule(cross, "contractions", *CROSS),
    record("linalg.cross", "contractions", cross, *CROSS, functions=(torch.linalg.cross,)),
    of_rule(trace, "contractions", *TRACE, number=Number(0, dim=None), padded="mask"),
    of_rule(vander, "contractions", *POWERS, functions=(torch.vander,)),
    record("linalg.vander", "contractions", vander, *POWERS, functions=(torch.linalg.vander,)),
)
