"""``mg.interop.pack`` beside a plain loop, and how full its rows are."""

from __future__ import annotations

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
        assert (
            mg.interop.pack(lengths, budget)
            == by_a_loop(lengths.tolist(), budget)
            == mg.interop.pack(lengths.numpy(), budget)
        )


def test_rows_are_as_full_as_the_page_says() -> None:
    draw = torch.Generator().manual_seed(0)
    lengths = (torch.randn(8000, generator=draw) + 5.5).exp().long().clamp(1, 2048)
    assert f"{lengths.sum() / 2048 / len(mg.interop.pack(lengths, 2048)):.2%}" == "99.96%"


def test_ranks_get_as_many_rows_and_tokens() -> None:
    lengths = torch.randint(1, 500, (999,), generator=torch.Generator().manual_seed(0))
    rows = mg.interop.pack(lengths, 1024, ranks=8)
    assert len(rows) % 8 == 0
    tokens = [[int(lengths[row].sum()) for row in rows[rank::8]] for rank in range(8)]
    steps = list(zip(*tokens, strict=True))[:-1]  # the last step may lack rows
    assert max(max(step) - min(step) for step in steps) < 0.05 * 1024
