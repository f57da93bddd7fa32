"""Each formula that runs compiled on a GPU, beside the formula itself and a copy of as many bytes.

``make bench-gpu`` runs it: one command, no network, less than ten minutes. It checks results in double precision
before any clock starts, writes ``benchmark-report/gpu.csv`` and prints a table like that on the page "GPU".
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.utils.benchmark import Timer

from benchmarks.agreement import agree
from benchmarks.provenance import provenance
from maskgrad.kernels import KERNELS
from maskgrad.kernels.compiled import failures

ROOT = Path(__file__).resolve().parent.parent


def cases(size: int, device: str) -> Iterator[tuple[str, tuple[Any, ...], int]]:
    """Kernel, arguments, and the bytes that must be read and written; matrices of which half is specified."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, size, generator=generator).to(device)
    mask = (torch.rand(size, size, generator=generator) < 0.5).to(device)
    target = torch.randn(size, size, generator=generator).to(device)
    read, written = x.nbytes + mask.nbytes, x.nbytes
    for name in ("masked_sum", "masked_mean"):
        yield name, (x, mask, (1,), False, None), read
    yield "masked_variance", (x, mask, (1,), False, 1.0), read
    yield "masked_norm", (x, mask, (1,), False, 2.0), read
    yield "masked_logsumexp", (x, mask, (1,), False), read
    yield "masked_extremum", (x, mask, (1,), False, True), read
    yield "standardized", (x, mask, (1,), 1e-5, True), read + written
    yield "masked_filling", (x, mask, 0.0), read + written
    yield "masked_expand", (x[:, :1], mask, x.dtype), mask.nbytes + written
    yield (
        "masked_distance_sum",
        (x, target, mask, (1.0, float("inf"), 1.0, 0.0)),
        read + target.nbytes,
    )


def measured(name: str, arguments: tuple[Any, ...], moved: int, device: str) -> dict[str, Any]:
    """Milliseconds of each way, after all of them have been found right."""
    kernel = KERNELS[name]
    ways: dict[str, Callable[..., Any]] = {
        "compiled": kernel.backend("compiled"),
        "formula": kernel.reference,
    }
    exact = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments]
    exact = [torch.float64 if a is torch.float32 else a for a in exact]
    expected = _first(kernel.reference(*exact))
    for way, function in ways.items():
        found = _first(function(*arguments))
        agree(found.double(), expected.double(), what=f"{name}, {way}")
    if name in failures:
        raise RuntimeError(f"{name}: {failures[name]}")
    source = torch.randn(moved // 8, device=device)
    ways["copy"] = torch.empty_like(source).copy_
    times = {}
    for way, function in ways.items():
        given = (source,) if way == "copy" else arguments
        timer = Timer("function(*given)", globals={"function": function, "given": given})
        times[way] = timer.blocked_autorange(min_run_time=0.3).median * 1e3
    return {"kernel": name, **times, "of the speed of a copy": times["copy"] / times["compiled"]}


def _first(result: Any) -> Tensor:
    """The values, of results that come with masks and counts."""
    parts = result if isinstance(result, (tuple, list)) else (result,)
    found: Tensor = next(part for part in parts if part.is_floating_point())
    return found


def main(
    device: Annotated[str, typer.Option(help="where to measure")] = "cuda",
    size: Annotated[int, typer.Option(help="side of the square matrices")] = 4096,
    out: Annotated[Path, typer.Option(help="CSV file for the numbers")] = ROOT
    / "benchmark-report"
    / "gpu.csv",
) -> None:
    """Measure each formula on a device."""
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        sys.exit(
            "PyTorch finds no CUDA device here: run this on a machine that has one, with PyTorch's build for CUDA"
        )
    found = []
    for name, arguments, moved in track(list(cases(size, device)), "kernels"):
        with torch.no_grad():
            found.append(measured(name, arguments, moved, device))
    table = Table(title=f"{size} x {size}, half specified, float32 (milliseconds)")
    for column in found[0]:
        table.add_column(column, justify="left" if column == "kernel" else "right")
    for row in found:
        table.add_row(*(value if isinstance(value, str) else f"{value:.3g}" for value in row.values()))
    Console().print(table)
    out.parent.mkdir(parents=True, exist_ok=True)
    about = {"device": torch.cuda.get_device_name() if device != "cpu" else "cpu", **provenance()}
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*found[0], *about])
        writer.writeheader()
        writer.writerows([row | about for row in found])


if __name__ == "__main__":
    typer.run(main)
