"""One screen: what masks and sparse gradients change, measured in this run, the code that differs beside its number."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from torch import Tensor, nn

import maskgrad as mg

from .part import seconds_of

__all__ = ["lines", "parts", "picture"]

#: entries of the picture's tensors, rows of 64
SIZES = (1_024, 8_192, 65_536, 524_288, 4_194_304)
RATE = 1e-3
#: The script that the doctor runs.
SCRIPT = Path(__file__).parents[2] / "docs" / "programs" / "train.py"


def parts(seed: int, *, quick: bool) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The title of each part, and its lines: code, and what it gave."""
    torch.manual_seed(seed)
    yield "Half of the targets are NaN; gradient norm of one layer", _nan()
    yield (
        "Four micro-batches with 1, 4, 9, 2 labels: distance from the whole batch's gradient",
        _denominators(),
    )
    rows, read, steps = (10_000, 256, 3) if quick else (1_000_000, 4_096, 12)
    title = f"AdamW, {rows:,} rows, {read:,} looked up: ms a step, distance from dense AdamW"
    yield title, _table(rows, read, steps)
    seconds = 0.05 if quick else 6.0
    yield (
        f"100,000 real ratings, {seconds:g} s each: RMSE on held-out ratings (stars)",
        _ratings(seed, seconds, quick),
    )
    yield "Two encoder layers on sentences of unequal length, trained: tokens per second", _lengths(quick)
    yield "maskgrad doctor train.py: is my masking right?", _doctor()


def lines(numbered: Iterator[tuple[str, list[tuple[str, str]]]]) -> Iterator[str]:
    """What is printed."""
    for number, (title, rows) in enumerate(numbered, 1):
        yield f"{number}. {title}"
        yield from (f"     {code:<58}{found:>24}".rstrip() for code, found in rows)


def _nan() -> list[tuple[str, str]]:
    layer, x, y = nn.Linear(8, 4), torch.randn(64, 8), torch.randn(64, 4)
    y[torch.rand_like(y) < 0.5] = torch.nan
    known = ~y.isnan()
    losses: dict[str, Callable[[], Tensor]] = {
        "F.mse_loss(model(x), y)": lambda: F.mse_loss(layer(x), y),
        "torch.where(y.isnan(), 0, (model(x) - y) ** 2).sum() / n": lambda: (
            torch.where(known, (layer(x) - y).square(), 0.0).sum() / known.sum()
        ),
        "F.mse_loss(model(x), mg.from_nan(y))": lambda: F.mse_loss(layer(x), mg.from_nan(y)),
        "the missing ones deleted by hand": lambda: F.mse_loss(layer(x)[known], y[known]),
    }
    found = []
    for code, loss in losses.items():
        grads = torch.autograd.grad(loss(), list(layer.parameters()))
        found.append((code, f"{torch.nn.utils.get_total_norm(grads).item():.3f}"))
    return found


def _denominators() -> list[tuple[str, str]]:
    layer, labels = nn.Linear(8, 5), (1, 4, 9, 2)
    x, y = torch.randn(4, 16, 8), torch.randint(0, 5, (4, 16))
    for row, count in enumerate(labels):
        y[row, count:] = -100
    params = list(layer.parameters())

    def gradient() -> Tensor:
        found = torch.cat([param.grad.flatten() for param in params if param.grad is not None])
        layer.zero_grad()
        return found

    F.cross_entropy(layer(x).flatten(0, 1), y.flatten()).backward()
    whole = gradient()
    for row in range(4):
        (F.cross_entropy(layer(x[row]), y[row]) / 4).backward()
    means = gradient()
    accumulator = mg.GradientAccumulator(layer)
    for row in range(4):
        accumulator.backward(F.cross_entropy(layer(x[row]), y[row], reduction="none"), mask=y[row] != -100)
    accumulator.finish()
    ours = gradient()
    size = whole.norm()
    return [
        ("(F.cross_entropy(model(x), y) / 4).backward()", f"{((means - whole).norm() / size).item():.0%}"),
        ("mg.GradientAccumulator(model)", f"{((ours - whole).norm() / size).item():.0e}"),
    ]


def _table(rows: int, read: int, steps: int) -> list[tuple[str, str]]:
    start, found, tables = torch.randn(rows, 16), [], []
    batches = [torch.randint(rows, (read,)) for _ in range(steps)]
    ways: dict[str, tuple[Any, bool, Callable[[Any], torch.optim.Optimizer]]] = {
        "torch.optim.AdamW(params)": (nn.Embedding, False, lambda p: torch.optim.AdamW(p, RATE)),
        'mg.optim.AdamW(params, unspecified="zero")': (
            mg.nn.Embedding, True, lambda p: mg.optim.AdamW(p, RATE, unspecified="zero"),
        ),
    }  # fmt: skip
    for code, (kind, sparse, make) in ways.items():
        table = kind(rows, 16, sparse=sparse, _weight=start.clone())
        optimizer = make(table.parameters())

        def step(batch: Tensor, table: nn.Embedding = table, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            table(batch).square().mean().backward()
            optimizer.step()

        times = [seconds_of(lambda batch=batch, step=step: step(batch)) for batch in batches]  # type: ignore[misc]
        mg.optim.flush(table)
        tables.append(table.weight.detach())
        apart = (tables[-1] - tables[0]).abs().max().item()
        found.append((code, f"{1e3 * statistics.median(times):.1f} ms  {apart:.0e}"))
    return found


def _doctor() -> list[tuple[str, str]]:
    """What the command prints of a script, which knows nothing of maskgrad, up to its experiments."""
    command = [sys.executable, "-m", "maskgrad", "doctor", "--quick", SCRIPT.name]
    where: dict[str, Any] = {"cwd": SCRIPT.parent, "env": {**os.environ, "COLUMNS": "120"}}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **where)
    if done.returncode != 1:
        raise RuntimeError(f"the doctor found nothing in {SCRIPT}:\n{done.stdout}{done.stderr}")
    printed = done.stdout.partition("\nexperiments")[0].splitlines()
    return [(line, "") for line in printed[1:] if line]


def _ratings(seed: int, seconds: float, quick: bool) -> list[tuple[str, str]]:
    from . import missing

    shown = {
        "F.mse_loss(model(x), masked_ratings)": "masked",
        "missing ratings filled with the mean": "mean-imputed",
        "missing ratings filled with 0": "zero-filled",
    }
    split = missing.ratings_of(seed, 300 if quick else None)
    return [
        (code, f"{missing.trained(split, loss, seed, seconds)['RMSE (stars)']:.3f}")
        for code, loss in shown.items()
    ]


def _lengths(quick: bool) -> list[tuple[str, str]]:
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    lengths = torch.randint(4, 17 if quick else 97, (32,))
    x = torch.randn(32, int(lengths.max()), 64)
    mask = torch.arange(x.shape[1]) < lengths[:, None]
    ways: dict[str, Callable[[], Tensor]] = {
        "encoder(x, src_key_padding_mask=~mask)": lambda: encoder(x, src_key_padding_mask=~mask)[mask],
        "sentence by sentence": lambda: torch.cat(
            [encoder(row[None, :n])[0] for row, n in zip(x, lengths.tolist(), strict=True)]
        ),
        "encoder(mg.from_lengths(x, lengths, layout=torch.jagged))": lambda: encoder(
            mg.from_lengths(x, lengths, layout=torch.jagged)
        ).values(),
    }
    expected, found = ways["sentence by sentence"](), []
    for code, way in ways.items():

        def step(way: Callable[[], Tensor] = way) -> Tensor:
            encoder.zero_grad()
            result = way()
            result.square().mean().backward()
            return result

        torch.testing.assert_close(step(), expected, rtol=1e-3, atol=1e-4)
        seconds = statistics.median(seconds_of(step) for _ in range(2 if quick else 9))
        found.append((code, f"{int(lengths.sum()) / seconds:,.0f}"))
    return found


def picture(axes: Axes, *, quick: bool) -> str:
    """Everyday lines by size beside the same by hand; the title says what was found."""
    ratios: dict[str, list[float]] = {"mean(1)": [], "var(1)": [], "logsumexp(1)": []}
    sizes = SIZES[:2] if quick else SIZES
    for size in sizes:
        values = torch.randn(size // 64, 64)
        mask = torch.rand_like(values) > 0.3
        mask[:, :2] = True
        x = mg.masked(values, mask)
        for name, (ours, hand) in _everyday(x, values, mask).items():
            for call in (ours, hand, ours, hand):
                call()
            pairs = [(seconds_of(ours), seconds_of(hand)) for _ in range(3 if quick else 15)]
            ratios[name].append(statistics.median(theirs / mine for mine, theirs in pairs))
    for name, found in ratios.items():
        axes.plot(sizes, found, marker="o", label=name)
    axes.axhline(1.0, color="0.5", linewidth=1)
    axes.set(xscale="log", yscale="log", xlabel="entries, in rows of 64", ylabel="times as fast as by hand")
    axes.legend()
    last = [found[-1] for found in ratios.values()]
    return (
        f"At {sizes[-1]:,} entries a mean, a variance and a logsumexp of rows are {min(last):.1f} to {max(last):.1f} "
        f"times as fast as torch.where by hand"
    )


def _everyday(x: Any, values: Tensor, mask: Tensor) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    def variance() -> Tensor:
        known, number = torch.where(mask, values, 0.0), mask.sum(1, keepdim=True)
        centered = torch.where(mask, known - known.sum(1, keepdim=True) / number, 0.0)
        return centered.square().sum(1) / (number[:, 0] - 1)

    return {
        "mean(1)": (lambda: x.mean(1), lambda: torch.where(mask, values, 0.0).sum(1) / mask.sum(1)),
        "var(1)": (lambda: x.var(1), variance),
        "logsumexp(1)": (lambda: x.logsumexp(1), lambda: torch.where(mask, values, -torch.inf).logsumexp(1)),
    }
