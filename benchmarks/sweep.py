"""Everyday lines at everyday sizes, beside the safe line that a careful user writes by hand: ``make sweep``.

*By hand* means right although NaN may stand under the mask: ``torch.where`` before the operation, and counts of the
mask made in the step. Each line is first compared with its twin by hand; then both are timed in turns, on one thread.
Writes ``sweep.csv`` and ``sweep.png``, and prints the large tensors' lines that are slower than by hand. ``--keep``
puts both beside the pages, and their table into README.md and docs/benchmarks.md.
"""

from __future__ import annotations

import csv
import math
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from matplotlib.text import Text
from rich.console import Console
from rich.progress import track
from torch import Tensor, where

import maskgrad as mg
from benchmarks.provenance import provenance
from maskgrad.plot.canvas import COLORS, INK, dress, figure

SHAPES = (
    (8, 16), (64, 200), (64, 200, 8), (32, 128, 64), (256, 256), (16, 128, 768), (4, 16, 64, 64), (100_000, 4),
    (4, 100_000), (512, 4096),
)  # fmt: skip
#: Number of entries from which lines have goals. A smaller tensor costs what its few calls of PyTorch cost.
LEAST = 65_536
#: A line is as fast as by hand up to noise; so many of the 528 shall be; medians of all lines, for each pass.
AS_FAST, LINES_AS_FAST, MEDIANS = 0.95, 500, (2.0, 1.5)
ROUNDS = 7
WAYS = ("forward", "forward + backward")
COLUMNS = ("line", "shape", "mask", "pass", "ours_us", "by_hand_us", "ratio")

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "docs" / "pictures"
#: Pages with a region for the table, and the shapes that are in it.
PAGES = {
    ROOT / "README.md": ((64, 200), (256, 256), (16, 128, 768), (512, 4096)),
    ROOT / "docs" / "benchmarks.md": SHAPES,
}
#: Of the picture for dark pages.
INK_IN_THE_DARK = "#c9d1d9"
BEGIN, END = "<!-- sweep: made by benchmarks/sweep.py -->", "<!-- end of sweep -->"

Dims = tuple[int, ...]
Line = tuple[str, Callable[[Any], Any], Callable[[Tensor, Tensor], Tensor]]


@dataclass(frozen=True)
class Sample:
    """Values with a mask: holes at random, or padding, which repeats along all dimensions but the first two."""

    kind: str
    values: Tensor
    mask: Tensor


def samples(shape: tuple[int, ...], device: str = "cpu") -> Iterator[Sample]:
    torch.manual_seed(0)
    values, holes = torch.randn(shape), torch.rand(shape) > 0.3
    # two are left of every slice, as a variance asks: without them, by hand is another line
    for dim in range(len(shape)):
        holes |= (torch.arange(shape[dim]) < 2).view(-1, *[1] * (len(shape) - 1 - dim))
    yield Sample("holes", values.to(device), holes.to(device))
    if len(shape) > 2:
        lengths = torch.randint(shape[1] // 6 + 1, shape[1] + 1, (shape[0],))
        lengths[0] = shape[1]
        padding = torch.arange(shape[1]) < lengths[:, None]
        padding = padding.view(*shape[:2], *[1] * (len(shape) - 2))
        yield Sample("padded", values.to(device), padding.to(device))


def _count(mask: Tensor, shape: torch.Size, dims: tuple[int, ...]) -> Tensor:
    return mask.expand(shape).sum(dims) if dims else mask.expand(shape).sum()


def _variance(values: Tensor, mask: Tensor, d: Dims) -> Tensor:
    dims = d or tuple(range(values.ndim))
    known, number = where(mask, values, 0.0), mask.expand(values.shape).sum(dims, keepdim=True)
    centered = where(mask, known - known.sum(dims, keepdim=True) / number, 0.0)
    return (centered * centered).sum(dims) / (number.squeeze(dims) - 1)


#: Along dimensions (none: over all): the line with a MaskedTensor, and by hand.
REDUCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sum": (lambda x, d: x.sum(*d), lambda v, m, d: where(m, v, 0.0).sum(*d)),
    "mean": (lambda x, d: x.mean(*d), lambda v, m, d: where(m, v, 0.0).sum(*d) / _count(m, v.shape, d)),
    "var": (lambda x, d: x.var(*d), _variance),
    "amax": (lambda x, d: x.amax(*d), lambda v, m, d: where(m, v, -math.inf).amax(d)),
}
ALONG: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "softmax": (lambda x, d: x.softmax(*d), lambda v, m, d: where(m, v, -math.inf).softmax(d[0])),
    "logsumexp": (lambda x, d: x.logsumexp(*d), lambda v, m, d: where(m, v, -math.inf).logsumexp(d)),
    "cumsum": (lambda x, d: x.cumsum(*d), lambda v, m, d: where(m, v, 0.0).cumsum(*d)),
}
ENTRYWISE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "x * x": (lambda x: x * x, lambda v, m: where(m, v, 0.0).square()),
    "exp": (lambda x: x.exp(), lambda v, m: where(m, v, 0.0).exp()),
    "gelu": (F.gelu, lambda v, m: F.gelu(where(m, v, 0.0))),
}


def lines(shape: tuple[int, ...], device: str = "cpu") -> Iterator[Line]:
    """What is measured: a name, the line with a MaskedTensor, the line by hand."""
    ndim = len(shape)
    chosen: list[Dims] = [(), *((dim,) for dim in (range(ndim) if ndim == 2 else (1, ndim - 1)))]
    for dims in chosen:
        for name, (ours, hand) in (REDUCTIONS | (ALONG if dims else {})).items():
            yield f"{name}({', '.join(map(str, dims))})", partial(ours, d=dims), partial(hand, d=dims)
    for name, (line, by_hand) in ENTRYWISE.items():
        yield name, line, by_hand
    yield (
        "mse_loss",
        partial(F.mse_loss, target=torch.zeros(shape, device=device)),
        lambda v, m: (where(m, v, 0.0) ** 2).sum() / _count(m, v.shape, ()),
    )


def _ours_and_back(line: Callable[[Any], Any], x: Any, grad: Tensor) -> None:
    y = line(x)
    (y if isinstance(y, Tensor) else y.filled(0.0)).backward(grad)


def _hand_and_back(
    line: Callable[[Tensor, Tensor], Tensor], values: Tensor, mask: Tensor, grad: Tensor
) -> None:
    line(values, mask).backward(grad)


def check(
    name: str, ours: Callable[[Any], Any], hand: Callable[[Tensor, Tensor], Tensor], sample: Sample
) -> None:
    """Compare the specified part of both results, and both gradients.

    Raises:
        AssertionError: they differ.
    """
    found, expected = sample.values.clone().requires_grad_(), sample.values.clone().requires_grad_()
    y = ours(mg.masked(found, sample.mask.expand(found.shape)))
    z = hand(expected, sample.mask)
    known = torch.ones_like(z, dtype=torch.bool) if isinstance(y, Tensor) else y.mask
    y = y if isinstance(y, Tensor) else y.filled(0.0)
    z = where(known, z, 0.0)
    torch.testing.assert_close(y, z, rtol=1e-3, atol=1e-4, msg=lambda text: f"{name}: {text}")
    weight = torch.linspace(0.5, 1.5, z.numel()).view(z.shape)
    (y * weight).sum().backward()
    (z * weight).sum().backward()
    torch.testing.assert_close(
        found.grad, expected.grad, rtol=1e-2, atol=1e-4, msg=lambda text: f"{name}: {text}"
    )


def seconds(call: Callable[[], Any], number: int) -> float:
    start = time.perf_counter()
    for _ in range(number):
        call()
    if torch.cuda.is_initialized():  # a GPU is measured: what it was given last is to be done, too
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / number


def timed(ours: Callable[[], Any], hand: Callable[[], Any]) -> tuple[float, float, float]:
    """How many times as fast as by hand, and the microseconds of both: medians of rounds in turns."""
    for _ in range(3):
        ours()
        hand()
    number = min(200, max(1, int(3e-3 / max(seconds(hand, 2), 1e-7))))
    pairs = [(seconds(ours, number), seconds(hand, number)) for _ in range(ROUNDS)]
    a, b = zip(*pairs, strict=True)
    return statistics.median(y / x for x, y in pairs), statistics.median(a) * 1e6, statistics.median(b) * 1e6


def measured(shape: tuple[int, ...], only: str, device: str) -> Iterator[dict[str, Any]]:
    """One row for each line, mask and pass."""
    size = "x".join(map(str, shape))
    for sample in samples(shape, device):
        values, mask, leaf = sample.values, sample.mask, sample.values.clone().requires_grad_()
        x, recorded = mg.masked(values, mask.expand(shape)), mg.masked(leaf, mask.expand(shape))
        for name, ours, hand in lines(shape, device):
            if only not in f"{name} {size} {sample.kind}":
                continue
            check(name, ours, hand, sample)
            grad = torch.ones_like(hand(values, mask))
            ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
                "forward": (partial(ours, x), partial(hand, values, mask)),
                "forward + backward": (
                    partial(_ours_and_back, ours, recorded, grad),
                    partial(_hand_and_back, hand, leaf, mask, grad),
                ),
            }
            for way, pair in ways.items():
                ratio, a, b = timed(*pair)
                row = (name, size, sample.kind, way, a, b, ratio)
                yield dict(zip(COLUMNS, row, strict=True))


def draw(rows: list[dict[str, Any]], to: Path) -> None:
    """A dot for each line, by the number of entries: for a bright page, and for a dark one beside it."""
    picture = figure(9, 4.6)
    axes = picture.subplots()
    for way, color in zip(WAYS, COLORS, strict=False):
        chosen = [row for row in rows if row["pass"] == way]
        sizes = [_entries(row) for row in chosen]
        shift = 1.06 if way == "forward" else 0.94
        axes.scatter(
            [n * shift for n in sizes],
            [row["ratio"] for row in chosen],
            s=14,
            alpha=0.6,
            color=color,
            label=way,
        )
    axes.axhline(1, color=INK, linewidth=0.9)
    axes.set_xscale("log")
    axes.set_yscale("log")
    middle = statistics.median(row["ratio"] for row in rows)
    title = f"Everyday lines run {middle:.1f} times as fast as by hand (median of {len(rows)})"
    dress(axes, title, "entries", "times as fast as by hand")
    axes.legend(frameon=False)
    picture.savefig(to, dpi=150, transparent=True)
    for part in (*axes.spines.values(), *axes.lines, *picture.findobj(Text)):
        part.set(color=INK_IN_THE_DARK)
    axes.tick_params(which="both", color=INK_IN_THE_DARK)
    picture.savefig(to.with_stem(f"{to.stem}-dark"), dpi=150, transparent=True)


def table(rows: Iterable[dict[str, Any]], shapes: Iterable[tuple[int, ...]] = SHAPES) -> str:
    """A column of Markdown for each of these shapes, from the rows of ``sweep.csv``."""
    rows = list(rows)
    columns = [["", "---", *WAYS, "as fast as by hand"]]
    for name in ("all", *("x".join(map(str, shape)) for shape in shapes)):
        if its := [row for row in rows if name in {"all", row["shape"]}]:
            passes = [_middle(row for row in its if row["pass"] == way) for way in WAYS]
            columns.append([name.replace("x", "×"), "---:", *passes, _as_fast(its)])
    facts = rows[0]
    note = (
        "Time by hand divided by that of maskgrad (above 1, maskgrad is faster): medians of the lines of a shape. "
        f"One thread, {facts['cpu']}, PyTorch {facts['torch']}, {facts['date'].split()[0]}, commit {facts['commit']}."
    )
    return "\n".join([*(f"| {' | '.join(line)} |" for line in zip(*columns, strict=True)), "", note])


def _middle(rows: Iterable[dict[str, Any]]) -> str:
    return f"{statistics.median(float(row['ratio']) for row in rows):.2g}"


def _entries(row: dict[str, Any]) -> int:
    return math.prod(map(int, row["shape"].split("x")))


def with_goals(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of large tensors."""
    return [row for row in rows if _entries(row) >= LEAST]


def is_as_fast(row: dict[str, Any]) -> bool:
    """Whether a line takes no longer than by hand, up to noise."""
    return float(row["ratio"]) >= AS_FAST


def _as_fast(rows: list[dict[str, Any]]) -> str:
    large = with_goals(rows)
    return f"{sum(map(is_as_fast, large))}/{len(large)}" if large else "no goal"


def with_table(page: Path, rows: Iterable[dict[str, Any]]) -> str:
    """The text of a page with its table written anew."""
    written = f"{BEGIN}\n\n{table(rows, PAGES[page])}\n\n{END}"
    return re.sub(f"{BEGIN}.*?{END}", lambda _: written, page.read_text(encoding="utf-8"), flags=re.DOTALL)


def main(
    only: Annotated[
        str, typer.Argument(help="Measure the lines that contain this, such as 'mean' or '64x200x8'.")
    ] = "",
    out: Annotated[Path, typer.Option(help="Where the table and the picture go.")] = Path("benchmark-report"),
    worst: Annotated[int, typer.Option(help="How many lines are printed.")] = 20,
    largest: Annotated[int, typer.Option(help="Leave out shapes of more entries.")] = 10**9,
    device: Annotated[str, typer.Option(help="Where the tensors are.")] = "cpu",
    keep: Annotated[
        bool, typer.Option("--keep", help="Write the table and the picture of the pages anew.")
    ] = False,
) -> None:
    """Measure everyday lines beside the safe line by hand."""
    if keep and device != "cpu":
        raise typer.BadParameter("the tables of the pages are those of a CPU; leave out --keep or --device")
    torch.set_num_threads(1)
    console = Console()
    shapes = [shape for shape in SHAPES if math.prod(shape) <= largest]
    rows = [
        row for shape in track(shapes, "Shapes", console=console) for row in measured(shape, only, device)
    ]
    if not rows:
        raise SystemExit(f"no line contains {only!r}; leave it out to measure all lines")
    facts = provenance()
    if device != "cpu":
        facts["cpu"] = torch.cuda.get_device_name()
    rows = [{**row, **facts} for row in sorted(rows, key=lambda row: row["ratio"])]
    out = KEPT if keep else out
    out.mkdir(parents=True, exist_ok=True)
    with (out / "sweep.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [*COLUMNS, *facts])
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, out / "sweep.png")
    for page in PAGES if keep else ():
        page.write_text(with_table(page, rows), encoding="utf-8")
    for row in [row for row in with_goals(rows) if not is_as_fast(row)][:worst]:
        console.print(
            f"{row['ratio']:.2f}  {row['line']} {row['shape']} {row['mask']}, {row['pass']} "
            f"({row['ours_us']:.0f} µs, by hand {row['by_hand_us']:.0f})",
            highlight=False,
        )
    medians = ", ".join(
        f"{_middle(row for row in rows if row['pass'] == way)} times as fast {way} (goal {goal:g})"
        for way, goal in zip(WAYS, MEDIANS, strict=True)
    )
    console.print(
        f"{_as_fast(rows)} lines from {LEAST:,} entries on are as fast as by hand (goal {LINES_AS_FAST} of 528); "
        f"medians of all lines: {medians}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    typer.run(main)
