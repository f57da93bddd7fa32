"""Chains of matrix products, and linear algebra made of elementwise steps, or of one sum."""

from __future__ import annotations

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


def cheapest_splits(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Torch's split of each part ``(i, j)`` of a chain, whose matrix ``i`` is ``(sizes[i], sizes[i + 1])``."""
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    split = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            options = {
                k: cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j)
            }
            best = i
            for k in range(i + 1, j):
                # among ties torch takes the last split of three matrices, the first of more
                if options[k] < options[best] or (count == 3 and options[k] == options[best]):
                    best = k
            split[i, j] = best
            cost[i, j] = options[split[i, j]]
    return split


def multi_dot(tensors: Sequence[Operand]) -> Entries:
    """``linalg.multi_dot``: in the cheapest order of multiplications."""
    if len(tensors) < 2:
        raise RuntimeError(f"multi_dot(): expected at least 2 tensors but got {len(tensors)}")
    return _chain(tensors, "multi_dot", vectors_at_the_ends=True)


def chain_matmul(*matrices: Operand) -> Entries:
    """``chain_matmul``: matrices as separate arguments, at least one."""
    return _chain(matrices, "chain_matmul", vectors_at_the_ends=False)


def _chain(matrices: Sequence[Operand], name: str, vectors_at_the_ends: bool) -> Entries:
    ranks = [values_of(matrix).ndim for matrix in matrices]
    for i, rank in enumerate(ranks):
        at_an_end = vectors_at_the_ends and i in (0, len(ranks) - 1)
        if rank != 2 and not (at_an_end and rank == 1):
            allowed = "1D or 2D" if at_an_end else "2D"
            raise RuntimeError(f"{name}(): tensor {i} must be {allowed} but got {rank}D")
    shapes = [values_of(matrix).shape for matrix in matrices]
    sizes = [shapes[0][0] if ranks[0] == 2 else 1, *(shape[0] for shape in shapes[1:])]
    sizes.append(shapes[-1][-1] if ranks[-1] == 2 else 1)
    splits = cheapest_splits(sizes)

    def product(i: int, j: int) -> Operand:
        if i == j:
            return matrices[i]
        k = splits[i, j]
        return times(product(i, k), product(k + 1, j))

    result = product(0, len(matrices) - 1)
    assert isinstance(result, Entries)  # dispatch calls a rule only with masked arguments
    return result


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
