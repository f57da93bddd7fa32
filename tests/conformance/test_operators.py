"""Every operator of Python, both orders of operands, eager against compiled, on square matrices that hide an exchange.

Dynamo has rules of its own for operators between a Tensor-like and a tensor, some of which exchange the operands or
forget that ``+=`` writes; where they are mended, ``masked_tensor/torch_patches`` says so.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import nan, on

FLOATS = torch.tensor([[1.5, 3.5, 2.5], [5.5, 1.5, 4.5], [2.5, 2.5, 3.5]], dtype=torch.float64)
OPERATORS = {
    torch.float64: "add sub mul truediv floordiv mod pow eq ne lt le gt ge matmul",
    torch.int64: "and_ or_ xor lshift rshift floordiv mod truediv sub",
}
IN_PLACE = {
    torch.float64: "iadd isub imul itruediv ifloordiv imod ipow imatmul",
    torch.int64: "iand ior ixor ilshift irshift",
}
MASKS = [
    (on([1, 1, 0], [1, 0, 1], [0, 1, 1]), on([0, 1, 1], [1, 1, 0], [1, 1, 1])),
    (on([0, 0, 0], [1, 1, 1], [0, 1, 0]), on([1, 0, 0], [0, 1, 0], [1, 1, 0])),
    (torch.zeros(3, 3).bool(), torch.ones(3, 3).bool()),
]


def masked(numbers: Tensor, mask: Tensor) -> mg.MaskedTensor:
    garbage = nan if numbers.is_floating_point() else torch.iinfo(numbers.dtype).max
    return mg.masked(torch.where(mask, numbers, garbage), mask)


def operands(kind: str, dtype: torch.dtype, masks: tuple[Tensor, Tensor]) -> tuple[Any, Any]:
    """Masked, a tensor, a scalar: by the letters of ``kind``."""
    pair = [x.to(dtype) for x in (FLOATS, FLOATS.T.flip(0) - 0.5)]
    number = 2 if dtype == torch.int64 else 1.5
    made = [{"m": masked(x, mask), "t": x.clone(), "s": number} for x, mask in zip(pair, masks, strict=True)]
    return made[0][kind[0]], made[1][kind[1]]


def assert_same(ours: Any, theirs: Any, label: str) -> None:
    assert type(ours) is type(theirs), label
    if isinstance(ours, mg.MaskedTensor):
        assert torch.equal(ours.mask, theirs.mask), label
        ours, theirs = ours.filled(0), theirs.filled(0)
    torch.testing.assert_close(ours, theirs, equal_nan=True, msg=lambda text: f"{label}: {text}")


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="eager", fullgraph=True)


# In place, a plain tensor on the left cannot say which entries are specified: test_writing.py has its refusal.
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        *itertools.product(("mt", "tm", "mm", "ms", "sm"), OPERATORS.items()),
        *itertools.product(("mt", "mm", "ms", "sm"), IN_PLACE.items()),
    ],
)
def test_operators_give_and_write_what_they_do_uncompiled(kind: str, names: tuple[torch.dtype, str]) -> None:
    """All in one graph, on several masks; what an operator writes to is seen by every name of it."""
    functions = [
        getattr(operator, name) for name in names[1].split() if "matmul" not in name or "s" not in kind
    ]

    def everything(a: Any, b: Any) -> list[Any]:
        found = []
        for function in functions:
            target = a if isinstance(a, (int, float)) else a.clone()
            found.append((function(target, b), target))
        return found

    fast = compiled(everything)
    with mg.count_recompiles() as compilations:
        for masks in MASKS:
            pairs = (run(*operands(kind, names[0], masks)) for run in (fast, everything))
            for function, ours, theirs in zip(functions, *pairs, strict=True):
                for part in range(2):
                    assert_same(ours[part], theirs[part], f"{function.__name__}, {kind}")
                assert (ours[0] is ours[1]) == (theirs[0] is theirs[1]), f"{function.__name__}, {kind}"
    assert compilations.number == 1, compilations.reasons


def test_operators_of_one_operand_and_sequences_of_operands_and_what_the_caller_sees() -> None:
    def everything(x: mg.MaskedTensor, n: mg.MaskedTensor, y: Tensor) -> list[Any]:
        large = n > 2
        x -= y  # the caller's object
        return [
            *(~n, +n, abs(n), -n, ~large, large & True, large ^ large, False | large),
            *(torch.cat((x, y)), torch.stack([y, x], 1), torch.hstack((x, x)), torch.einsum("ij,jk", (y, x))),
        ]

    found = []
    for run in (compiled(everything), everything):
        x, y = operands("mt", torch.float64, MASKS[0])
        found.append([*run(x, operands("mt", torch.int64, MASKS[0])[0], y), x])
    for i, (ours, theirs) in enumerate(zip(*found, strict=True)):
        assert_same(ours, theirs, str(i))


def test_refusals_are_told_in_full() -> None:
    x, _ = operands("mt", torch.float64, MASKS[0])
    with pytest.raises(torch._dynamo.exc.Unsupported, match="matrix with missing entries"):
        compiled(torch.linalg.inv)(x)
    with pytest.raises(mg.UndefinedOnMaskedError, match="matrix with missing entries"):
        torch.compile(torch.linalg.inv, backend="eager")(x)
