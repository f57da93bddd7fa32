"""Every operator of Python, both orders of operands, eager against compiled, on square matrices that hide an exchange.

Dynamo has rules of its own for operators between a Tensor-like and a tensor, some of which exchange the operands or
forget that ``+=`` writes; where they are mended, ``masked_tensor/torch_patches`` says so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import nan, on

Operators = list[Callable[..., Any]]

COMPARISONS: Operators = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
ARITHMETIC: Operators = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
]  # fmt: skip
BITS: Operators = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
IN_PLACE: Operators = [
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod, operator.ipow,
]  # fmt: skip
BITS_IN_PLACE: Operators = [operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift]

#: masked and tensor, in which order; masked and masked; masked and number
KINDS = ("mt", "tm", "mm", "ms", "sm")
#: In place, a plain tensor on the left cannot say which entries are specified: test_writing.py has its refusal.
WRITTEN = ("mt", "mm", "ms", "sm")


def numbers(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two square matrices, neither symmetric, all entries positive."""
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randint(1, 6, (3, 3), generator=generator) for _ in range(2))
    return (a.to(dtype), b.to(dtype)) if not dtype.is_floating_point else (a.to(dtype) + 0.5, b.to(dtype))


def masked(numbers: Tensor, mask: Tensor) -> mg.MaskedTensor:
    garbage = nan if numbers.is_floating_point() else torch.iinfo(numbers.dtype).max
    return mg.masked(torch.where(mask, numbers.detach(), garbage), mask)


MASKS = [
    (on([1, 1, 0], [1, 0, 1], [0, 1, 1]), on([0, 1, 1], [1, 1, 0], [1, 1, 1])),
    (on([0, 0, 0], [1, 1, 1], [0, 1, 0]), on([1, 0, 0], [0, 1, 0], [1, 1, 0])),
    (torch.zeros(3, 3).bool(), torch.ones(3, 3).bool()),
]


def operands(kind: str, dtype: torch.dtype, masks: tuple[Tensor, Tensor]) -> tuple[Any, Any]:
    a, b = numbers(dtype)
    number = 2 if not dtype.is_floating_point else 1.5
    parts = {"m": (masked(a, masks[0]), masked(b, masks[1])), "t": (a, b), "s": (number, number)}
    return parts[kind[0]][0], parts[kind[1]][1]


def assert_same(ours: Any, theirs: Any, label: str) -> None:
    assert type(ours) is type(theirs), label
    if isinstance(ours, mg.MaskedTensor):
        assert ours.dtype == theirs.dtype, label
        assert torch.equal(ours.mask, theirs.mask), label
        ours, theirs = ours.filled(0), theirs.filled(0)
    torch.testing.assert_close(ours, theirs, equal_nan=True, msg=lambda text: f"{label}: {text}")


def check(operators: Operators, kind: str, dtype: torch.dtype, in_place: bool) -> None:
    """All operators in one graph, on several masks; what an operator writes to is seen by every name of it."""

    def everything(a: Any, b: Any) -> list[Any]:
        found = []
        for function in operators:
            target = a.clone() if in_place and not isinstance(a, (int, float)) else a
            alias = target
            target = function(target, b)
            found.append((target, alias))
        return found

    fast = torch.compile(everything, backend="eager", fullgraph=True)
    with mg.count_recompiles() as compilations:
        for masks in MASKS:
            expected = everything(*operands(kind, dtype, masks))
            found = fast(*operands(kind, dtype, masks))
            for function, ours, theirs in zip(operators, found, expected, strict=True):
                for part in range(2):
                    assert_same(ours[part], theirs[part], f"{function.__name__}, {kind}, {dtype}")
                assert (ours[0] is ours[1]) == (theirs[0] is theirs[1]), f"{function.__name__}, {kind}"
    assert compilations.number == 1, compilations.reasons


@pytest.mark.parametrize("kind", KINDS)
def test_floats(kind: str) -> None:
    products = [operator.matmul] if "s" not in kind else []
    check(ARITHMETIC + COMPARISONS + products, kind, torch.float64, False)


@pytest.mark.parametrize("kind", KINDS)
def test_integers_and_bits(kind: str) -> None:
    check([*BITS, operator.floordiv, operator.mod, operator.truediv, operator.sub], kind, torch.int64, False)


@pytest.mark.parametrize("kind", WRITTEN)
def test_floats_in_place(kind: str) -> None:
    products = [operator.imatmul] if "s" not in kind else []
    check(IN_PLACE + products, kind, torch.float64, True)


@pytest.mark.parametrize("kind", WRITTEN)
def test_bits_in_place(kind: str) -> None:
    check(BITS_IN_PLACE, kind, torch.int64, True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_unary(dtype: torch.dtype) -> None:
    def everything(x: mg.MaskedTensor) -> list[Any]:
        if x.dtype != torch.bool:
            return [~x, +x, abs(x), -x]
        return [~x, x & True, x ^ x, False | x]

    x = masked(numbers(torch.int64)[0], MASKS[0][0])
    x = x > 2 if dtype == torch.bool else x
    for ours, theirs in zip(
        torch.compile(everything, backend="eager", fullgraph=True)(x), everything(x), strict=True
    ):
        assert_same(ours, theirs, str(dtype))


def test_augmented_assignment_reaches_every_name() -> None:
    def function(x: mg.MaskedTensor, by: Tensor) -> tuple[mg.MaskedTensor, mg.MaskedTensor]:
        local = x * 1
        alias = local
        local += by
        x -= by  # the caller's object
        return local, alias

    fast = torch.compile(function, backend="eager", fullgraph=True)
    by = numbers(torch.float64)[1]
    found = []
    for run in (fast, function):
        x = masked(numbers(torch.float64)[0], MASKS[0][0])
        local, alias = run(x, by)
        assert local is alias
        found.append((local, x))
    for ours, theirs in zip(*found, strict=True):
        assert_same(ours, theirs, "augmented assignment")


def test_tuples_and_lists_of_operands() -> None:
    def function(x: mg.MaskedTensor, y: Tensor) -> list[Any]:
        return [
            torch.cat((x, y)),
            torch.stack([y, x], 1),
            torch.hstack((x, x)),
            torch.einsum("ij,jk", (y, x)),
        ]

    x, y = masked(numbers(torch.float64)[0], MASKS[0][0]), numbers(torch.float64)[1]
    for ours, theirs in zip(
        torch.compile(function, backend="eager", fullgraph=True)(x, y), function(x, y), strict=True
    ):
        assert_same(ours, theirs, "sequences")


def test_refusals_are_told_in_full() -> None:
    x = masked(numbers(torch.float64)[0], MASKS[0][0])
    with pytest.raises(torch._dynamo.exc.Unsupported, match="matrix with missing entries"):
        torch.compile(torch.linalg.inv, backend="eager", fullgraph=True)(x)
    with pytest.raises(mg.UndefinedOnMaskedError, match="matrix with missing entries"):
        torch.compile(torch.linalg.inv, backend="eager")(x)
