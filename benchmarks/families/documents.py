"""Packed rows: documents there and back with a loss, beside a padded loop by hand; and how full packed rows are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import maskgrad as mg
from benchmarks.case import OURS, Case, Comparison, Implementation
from benchmarks.masked_comparison import FORWARD_AND_BACKWARD
from benchmarks.plan import Family, Point
from benchmarks.samples import random_values

__all__ = ["FAMILY", "best_fit", "first_fit"]

NAME = "documents"
LENGTH = 2048


def _cases(point: Point) -> Iterator[Case]:
    shape = (point.size, LENGTH)
    prepare = functools.partial(_there_and_back, shape, point)
    title = "unpack, center, pack, aggregate"
    yield Case(NAME, title, FORWARD_AND_BACKWARD, shape, point.density, point.dtype, prepare)
    lengths = _lengths(500 * point.size)
    total = sum(lengths) / LENGTH
    full = ", ".join(
        f"{name} {100 * total / len(rows(lengths, LENGTH)):.2f} %"
        for name, rows in (("rows full by", mg.interop.pack), ("first fit", first_fit))
    )
    yield Case(
        NAME, "interop.pack", "forward", (len(lengths),), None, point.dtype,
        functools.partial(_packed, lengths), note=full,
    )  # fmt: skip


def _lengths(number: int) -> list[int]:
    """Lengths of texts: log-normal, about 270 tokens, cut to a row."""
    draw = torch.Generator().manual_seed(0)
    return [*(torch.randn(number, generator=draw) + 5.5).exp().long().clamp(1, LENGTH).tolist()]


def _spans(rows: int, density: float) -> list[tuple[int, int, int]]:
    """Row, start and end of documents; a share of each row is left as padding."""
    found, lengths = [], iter(_lengths(rows * LENGTH))
    for row in range(rows):
        start = 0
        while (end := min(start + next(lengths), int(density * LENGTH))) > start:
            found.append((row, start, end))
            start = end
    return found


def _there_and_back(shape: tuple[int, int], point: Point) -> Comparison:
    """Each document less its mean, and the mean over documents of the mean square; the gradient is compared."""
    x = random_values(shape, point.dtype).requires_grad_()
    spans = _spans(shape[0], point.density)
    ids = torch.full(shape, -1)
    for number, (row, start, end) in enumerate(spans):
        ids[row, start:end] = number

    def ours() -> Tensor:
        z = mg.unpack_documents(x, segment_ids=ids)
        centered = mg.pack_documents(z - z.mean(1, keepdim=True), segment_ids=ids)
        loss = mg.aggregate(centered.square(), "seq-mean-token-mean", documents=ids)
        return torch.autograd.grad(loss, x)[0]

    def by_hand() -> Tensor:
        parts = [x[row, start:end] for row, start, end in spans]
        lengths = torch.tensor([len(part) for part in parts])[:, None]
        padded = pad_sequence(parts, batch_first=True)
        inside = torch.arange(padded.shape[1]) < lengths
        padded = torch.where(inside, padded - padded.sum(1, keepdim=True) / lengths, 0)
        rows = torch.zeros_like(x)
        for place, (row, start, end) in enumerate(spans):
            rows[row, start:end] = padded[place, : end - start]
        losses = rows.square()
        loss = torch.stack([losses[row, start:end].mean() for row, start, end in spans]).mean()
        return torch.autograd.grad(loss, x)[0]

    with torch.no_grad():
        truth = torch.zeros(shape, dtype=torch.float64)
        for row, start, end in spans:
            part = x[row, start:end].double()
            truth[row, start:end] = 2 * (part - part.mean()) / (len(part) * len(spans))
    made = {OURS: lambda: Implementation(ours), "by-hand": lambda: Implementation(by_hand)}
    return Comparison(made, functools.partial(_close, truth))


def _close(truth: Tensor, found: Tensor) -> None:
    torch.testing.assert_close(found.double(), truth, rtol=1e-3, atol=1e-6)


def _packed(lengths: list[int]) -> Comparison:
    """Best fit decreasing beside the same with a list of rows, as one writes it, and first fit."""
    makers: dict[str, Callable[..., list[list[int]]]] = {OURS: mg.interop.pack, "by-hand": best_fit}
    run, sizes = functools.partial, lambda rows: torch.tensor(sorted(map(len, rows)))
    made = {name: run(Implementation, run(rows, lengths, LENGTH), sizes) for name, rows in makers.items()}

    def verify(found: Tensor) -> None:
        assert int(found.sum()) == len(lengths)

    return Comparison(made, verify)


def best_fit(lengths: list[int], budget: int) -> list[list[int]]:
    """Each sample into the fullest row that has room, the longest sample first, as TRL's ``"bfd"``."""
    rows: list[list[int]] = []
    rooms: list[int] = []
    for sample in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        size = lengths[sample]
        fits = [(room, row) for row, room in enumerate(rooms) if room >= size]
        if fits:
            row = min(fits)[1]
            rows[row].append(sample)
            rooms[row] -= size
        else:
            rows.append([sample])
            rooms.append(budget - size)
    return rows


def first_fit(lengths: list[int], budget: int) -> list[list[int]]:
    """Each sample into the first row that has room, in the order of the data."""
    rows: list[list[int]] = []
    rooms = torch.empty(len(lengths), dtype=torch.int64)
    for sample, size in enumerate(lengths):
        fits = (rooms[: len(rows)] >= size).nonzero()
        row = int(fits[0]) if len(fits) else len(rows)
        if row == len(rows):
            rows.append([])
            rooms[row] = budget
        rows[row].append(sample)
        rooms[row] -= size
    return rows


FAMILY = Family(
    NAME,
    "packed rows of documents",
    size_is=f"rows of {LENGTH} tokens",
    cases=_cases,
    sizes=(16,),
    quick_size=4,
    densities=(0.9,),
)
