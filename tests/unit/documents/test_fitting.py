"""``mg.interop.pack`` beside a plain loop, and how full its rows are."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import maskgrad as mg


def by_a_loop(lengths: list[int], budget: int) -> list[list[int]]:
    sizes = [max(length, 1) for length in lengths]  # an empty sample counts as one
    rows: list[list[int]] = []
    for sample in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        rooms = [budget - sum(sizes[i] for i in row) for row in rows]
        fits = [(room, at) for at, room in enumerate(rooms) if room >= sizes[sample]]
        if not fits:
            rows.append([])
        rows[min(fits)[1] if fits else -1].append(sample)
    return sorted(map(sorted, rows), key=lambda row: -sum(sizes[i] for i in row))


@pytest.mark.parametrize("budget", [1, 10, 37, 1000])
def test_rows_are_those_of_best_fit_decreasing(budget: int) -> None:
    draw = torch.Generator().manual_seed(budget)
    for number in (0, 1, 7, 200):
        lengths = torch.randint(0, min(budget, 40) + 1, (number,), generator=draw)
        rows = mg.interop.pack(lengths, budget)
        assert rows == by_a_loop(lengths.tolist(), budget) == mg.interop.pack(lengths.numpy(), budget)
        assert sorted(sample for row in rows for sample in row) == list(range(number))
        assert all(sum(max(int(lengths[i]), 1) for i in row) <= budget for row in rows)


def test_ranks_get_as_many_rows_and_tokens() -> None:
    lengths = torch.randint(1, 500, (999,), generator=torch.Generator().manual_seed(0))
    rows = mg.interop.pack(lengths, 1024, ranks=8)
    assert len(rows) % 8 == 0
    tokens = [[int(lengths[row].sum()) for row in rows[rank::8]] for rank in range(8)]
    steps = list(zip(*tokens, strict=True))[:-1]  # the last step may lack rows
    assert max(max(step) - min(step) for step in steps) < 0.05 * 1024


REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "long": (([3, 9], 8), {}, "sample 1 has length 9, not from 0 to the budget of 8"),
    "negative": (([3, -1], 8), {}, "sample 1 has length -1, not from 0"),
    "floats": (([3.0], 8), {}, r"lengths must be integers \(N,\), found torch.float32"),
    "budget": (([3], 8.5), {}, "budget must be 1 or more, found 8.5"),
    "ranks": (([3], 8), {"ranks": 0}, "ranks must be 1 or more, found 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_what_to_write(name: str) -> None:
    arguments, given, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        mg.interop.pack(*arguments, **given)
    line = re.search(r"write (mg\.interop\.pack\(.*\))$", str(caught.value))
    assert line, caught.value
    names = {"mg": mg, "lengths": arguments[0], "budget": arguments[1], "data": [[1, 2]]}
    assert eval(line[1], names)
