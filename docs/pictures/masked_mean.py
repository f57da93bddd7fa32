"""Measures the ways to take a masked mean, and writes the table of docs/masked_mean.md.

Run it from the root, ``PYTHONPATH=. python docs/pictures/masked_mean.py``, and once more where PyTorch/XLA is installed
(after ``make test-xla``: ``PYTHONPATH=. .venv-xla/bin/python docs/pictures/masked_mean.py``). Either run replaces
its own rows of masked_mean.csv; the table is made of both. Results are compared before anything is measured.
"""

from __future__ import annotations

import csv
import itertools
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import maskgrad as mg
from benchmarks.provenance import provenance

SIDE, MASKS, ROUNDS = 1024, 8, 40
HERE = Path(__file__).resolve()
RESULTS, PAGE = HERE.with_suffix(".csv"), HERE.parents[1] / "masked_mean.md"
BEGIN, END = "<!-- table: made by docs/pictures/masked_mean.py -->", "<!-- end of table -->"

Mean = Callable[[Tensor, Tensor], Tensor]


class MeanOfSpecified(mg.Function):
    """The mean, its derivative written by hand."""

    @staticmethod
    def forward(x: Tensor, mask: Tensor) -> Tensor:
        """Nothing specified has the mean 0."""
        return torch.where(mask, x, 0).sum() / mask.sum().clamp(min=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        """The mask is all that the derivative needs."""
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The same share for every specified entry."""
        (mask,) = ctx.saved_tensors
        return torch.where(mask, gradient / mask.sum().clamp(min=1), 0), None


def selected(x: Tensor, mask: Tensor) -> Tensor:
    """What is right, and slow."""
    return x.masked_select(mask).mean()


def multiplied(x: Tensor, mask: Tensor) -> Tensor:
    """What is fast, and lets NaN through."""
    return (x * mask).sum() / mask.sum()


def hooked(x: Tensor, mask: Tensor) -> Tensor:
    """Forward code as it was, which calls ``nan_to_num``; only the gradient is ours."""
    return (mg.mask_gradient(x, mask).nan_to_num() * mask).sum() / mask.sum().clamp(min=1)


WAYS: dict[str, Mean] = {
    "`mg.masked(x, m).mean()`": lambda x, m: mg.masked(x, m).mean(),
    "`mg.Function`, backward by hand": MeanOfSpecified.apply,
    "`mg.mask_gradient`": hooked,
    "`x.masked_select(m).mean()`": selected,
    "`(x * m).sum() / m.sum()`": multiplied,
}


def batch(k: int, missing: float) -> tuple[Tensor, Tensor]:
    """Data with ``missing`` where the mask, another one for each k, is False."""
    generator = torch.Generator().manual_seed(k)
    mask = torch.rand(SIDE, SIDE, generator=generator) < (k + 1) / (MASKS + 1)
    return torch.where(mask, torch.randn(SIDE, SIDE, generator=generator), missing), mask


def is_right(mean: Mean, missing: float) -> bool:
    """Whether value and gradient are those of the specified entries."""
    for k in range(MASKS):
        data, mask = batch(k, missing)
        value, gradient = step(mean, data, mask)
        right = torch.where(mask, 1 / mask.sum(), 0)
        if not torch.allclose(value, data[mask].mean(), atol=1e-6) or not torch.allclose(
            gradient, right, atol=1e-9
        ):
            return False
    return True


def step(mean: Mean, data: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Forward and backward."""
    x = data.detach().requires_grad_()
    value = mean(x, mask)
    value.backward()
    assert x.grad is not None
    return value.detach(), x.grad


def peak(mean: Mean) -> float:
    """The most memory, in MiB, that one forward and backward pass has at a time beside its input."""
    data, mask = batch(3, 0.0)
    step(mean, data, mask)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step(mean, data, mask)
    changes = [
        e.nbytes()
        for e in profiled.profiler.kineto_results.events()
        if e.name() == "[memory]"  # type: ignore[union-attr]
    ]
    return max(itertools.accumulate(changes), default=0) / 2**20


def compilations(mean: Mean) -> int:
    """How often torch.compile compiles for all the masks."""
    torch._dynamo.reset()
    compiled = torch.compile(mean, backend="aot_eager", dynamic=False)
    with mg.count_recompiles() as seen:
        for k in range(MASKS):
            step(compiled, *batch(k, 0.0))
    return seen.number


def times(steps: dict[str, Callable[[int], None]]) -> dict[str, float]:
    """Milliseconds of each, measured in turns: the least of them, for a busy machine only ever adds."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for r in range(ROUNDS):
        for name in names[r % len(names) :] + names[: r % len(names)]:
            one = steps[name]
            start = time.perf_counter()
            one(r % MASKS)
            found[name].append((time.perf_counter() - start) * 1e3)
    return {name: min(sample) for name, sample in found.items()}


def on_the_cpu() -> dict[str, dict[str, Any]]:
    """What each way gives and costs in PyTorch itself."""
    batches = [batch(k, 0.0) for k in range(MASKS)]

    def one(mean: Mean) -> Callable[[int], None]:
        def run(k: int) -> None:
            step(mean, *batches[k])

        return run

    for mean in WAYS.values():
        assert is_right(mean, 0.0)
        one(mean)(0)
    milliseconds = times({name: one(mean) for name, mean in WAYS.items()})
    return {
        name: {
            "right_with_nan": is_right(mean, float("nan")),
            "compilations": compilations(mean),
            "ms": milliseconds[name],
            "peak_mib": peak(mean),
        }
        for name, mean in WAYS.items()
    }


def on_xla() -> dict[str, dict[str, Any]]:
    """What each way costs on PyTorch/XLA, with masks that it has not seen, and with masks that it has."""
    import torch_xla
    from torch_xla.debug import metrics

    def number(metric: str) -> int:
        return int((metrics.metric_data(metric) or [0])[0])

    device = torch_xla.device()
    batches = [tuple(t.to(device) for t in batch(k, 0.0)) for k in range(MASKS)]

    def one(mean: Mean) -> Callable[[int], None]:
        def run(k: int) -> None:
            kept = step(mean, *batches[k])
            torch_xla.sync(wait=True)
            del kept

        return run

    counts = {}
    for name, mean in WAYS.items():
        torch_xla.sync(wait=True)
        before = number("CompileTime"), number("TransferFromDeviceTime")
        for k in range(MASKS):
            one(mean)(k)
        after = number("CompileTime"), number("TransferFromDeviceTime")
        counts[name] = after[0] - before[0], (after[1] - before[1]) / MASKS
    milliseconds = times({name: one(mean) for name, mean in WAYS.items()})
    return {
        name: {"compilations": counts[name][0], "copies_per_step": counts[name][1], "ms": milliseconds[name]}
        for name in WAYS
    }


COLUMNS = [
    "way",
    "on",
    "right_with_nan",
    "compilations",
    "copies_per_step",
    "ms",
    "peak_mib",
    "shape",
    "masks",
]


def record(on: str, measured: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """Keep the rows of the other environment, replace those of this one, and return all."""
    facts = {"shape": f"{SIDE}x{SIDE}", "masks": str(MASKS)} | provenance()
    if find_spec("torch_xla") is not None:
        import torch_xla

        facts["torch_xla"] = torch_xla.__version__
    rows: list[dict[str, str]] = []
    if RESULTS.exists():
        with RESULTS.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["on"] != on]
    rows += [
        {"way": way, "on": on} | {k: _text(v) for k, v in cost.items()} | facts
        for way, cost in measured.items()
    ]
    names = list(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)]))
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: row["on"]))
    return rows


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows: list[dict[str, str]]) -> str:
    """The table of the page, and where its numbers come from."""
    by = {(row["way"], row["on"]): row for row in rows}
    head = [
        "way",
        "right, NaN missing",
        "compilations, XLA",
        "copies, XLA",
        "ms, XLA",
        "compilations",
        "ms",
        "MiB",
    ]
    lines = [" | ".join(head), " | ".join(["---"] * len(head))]
    for way in WAYS:
        cpu, xla = by.get((way, "cpu"), {}), by.get((way, "xla"), {})
        cells = [
            way, {"True": "yes", "False": "**no**"}.get(cpu.get("right_with_nan", ""), ""),
            xla.get("compilations", ""), xla.get("copies_per_step", ""), xla.get("ms", ""),
            cpu.get("compilations", ""), cpu.get("ms", ""), cpu.get("peak_mib", ""),
        ]  # fmt: skip
        lines.append(" | ".join(cells))
    notes = []
    for on, name in (("cpu", "PyTorch"), ("xla", "PyTorch/XLA")):
        row = next((row for row in rows if row["on"] == on), None)
        if row is not None:
            notes.append(
                f"{name} {row.get('torch_xla' if on == 'xla' else 'torch')}, {row['cores']} cores of {row['cpu']} "
                f"(load {row['load']}), {row['date']}"
            )
    shape, masks = rows[0]["shape"].replace("x", " × "), rows[0]["masks"]
    return (
        "\n".join(f"| {line} |" for line in lines)
        + f"\n\n{shape} float32 numbers, {masks} masks, forward and backward, the fastest of {ROUNDS} "
        f"times; copies from the device to the host are "
        f"counted per step. {'. '.join(notes)}. Numbers in `docs/pictures/masked_mean.csv`."
    )


def main() -> None:
    """Measure what this environment has, and write the table."""
    rows = record(*(("cpu", on_the_cpu()) if find_spec("torch_xla") is None else ("xla", on_xla())))
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}", encoding="utf-8")
    print(table(rows))  # noqa: T201


if __name__ == "__main__":
    main()
