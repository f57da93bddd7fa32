"""Masked counts, positions, sizes and shifts: read if all of them are specified, else refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.poison import assert_entries, on, poisoned

X = [[1.0, None], [3.0, 4.0]]
COUNTS = {
    "repeat_interleave": lambda x, k: torch.repeat_interleave(x, k, 0),
    "repeat_interleave by name": lambda x, k: torch.repeat_interleave(input=x, repeats=k, dim=0),
    "repeat_interleave of counts": lambda x, k: torch.repeat_interleave(k),
    "tensor_split": lambda x, k: torch.tensor_split(x, k)[1],
}
NUMBERS = {
    "roll": lambda x, k: x.roll(k, 0),
    "narrow": lambda x, k: x.narrow(0, k, 1),
    "select": lambda x, k: torch.select(x, 0, k),
    "repeat": lambda x, k: x.repeat(k, 2),
    "reshape": lambda x, k: x.reshape(k, 4),
    "view": lambda x, k: x.view(k, 4),
    "expand": lambda x, k: x[:1].expand(k, 2),
    "unfold": lambda x, k: x.unfold(0, k, 1),
    "tril": lambda x, k: x.tril(k),
    "triu by name": lambda x, k: torch.triu(x, diagonal=k),
    "new_full": lambda x, k: x.new_full((k,), 2.0),
    "new_zeros": lambda x, k: x.new_zeros(k, 3),
    "randint_like": lambda x, k: torch.randint_like(x, k) * 0,
    "one_hot": lambda x, k: F.one_hot(torch.zeros(2, dtype=torch.int64), k),
}
CASES = [(f, [1, 2]) for f in COUNTS.values()] + [(f, 1) for f in NUMBERS.values()]


@pytest.mark.every
@pytest.mark.parametrize(("function", "number"), CASES, ids=[*COUNTS, *NUMBERS])
@pytest.mark.parametrize("is_masked", [False, True], ids=["plain operand", "masked operand"])
def test_read_if_specified_else_refused(function: Any, number: Any, is_masked: bool) -> None:
    x = poisoned(X, torch.float32) if is_masked else torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    plain = torch.tensor(number)
    if not is_masked and function in (NUMBERS["roll"], NUMBERS["expand"], NUMBERS["new_zeros"]):
        with pytest.raises((TypeError, RuntimeError)):  # PyTorch's own: it takes no Tensor-like there
            function(x, mg.masked(plain))
        return
    found, expected = function(x, mg.masked(plain)), function(x, plain.item() if plain.ndim == 0 else plain)
    if isinstance(expected, mg.MaskedTensor):
        assert_entries(found, expected.tolist(), expected.dtype)
    else:
        assert type(found) is type(expected)
        assert torch.equal(found, expected)
    garbage = torch.tensor(2**40 if plain.ndim == 0 else [1, 2**40])
    for given in (garbage, -garbage):
        with pytest.raises(mg.UnspecifiedValueError, match=r"x\.filled\(value\).*x\.compressed\(\)"):
            function(x, mg.masked(given, on(1, 0) if plain.ndim else torch.tensor(False)))


def test_in_a_graph_nobody_knows() -> None:
    fast = torch.compile(lambda x, k: x.repeat_interleave(k, 0), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="which is unknown for a MaskedTensor in a graph"):
        fast(poisoned(X), mg.masked(torch.tensor([1, 2])))


def test_a_masked_number_to_fill_with() -> None:
    x, known, unknown = poisoned(X), poisoned(5.0), poisoned(None)
    assert_entries(torch.full_like(x, known), [[5.0, None], [5.0, 5.0]])
    assert_entries(torch.full_like(x, fill_value=unknown), [[None, None], [None, None]])
    assert_entries(torch.full_like(torch.zeros(2), unknown, dtype=torch.int64), [None, None], torch.int64)
    assert_entries(x.new_full((2,), known), [5.0, 5.0])
    assert_entries(x.new_full((2,), fill_value=unknown), [None, None])
    with pytest.warns(UserWarning, match="copy construct"):
        assert_entries(x.new_tensor(poisoned([1.0, None])), [1.0, None])
