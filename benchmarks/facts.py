"""What PyTorch's own steps cost, which decides how kernels are written: ``python -m benchmarks.facts``.

Medians, on one thread. ``--keep`` writes the table of docs/measured_facts.md anew.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import Tensor

import maskgrad as mg
from benchmarks.provenance import provenance
from benchmarks.sweep import seconds
from maskgrad.kernels import masked_filling

__all__ = ["Step", "steps", "table"]

PAGE = Path(__file__).resolve().parent.parent / "docs" / "measured_facts.md"
BEGIN, END = "<!-- facts: made by benchmarks/facts.py -->", "<!-- end of facts -->"
SMALL, LARGE = 64, 65_536
ROUNDS = 15


class Step(NamedTuple):
    """Something that a kernel may do, and what it works on."""

    group: str
    name: str
    call: Callable[[], Any]


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, grad: Tensor) -> Tensor:
        return grad * 2


def steps() -> Iterator[Step]:
    """All of them, with their operands."""
    torch.manual_seed(0)
    yield from _selections()
    yield from _calls()
    yield from _memory()


def _selections() -> Iterator[Step]:
    x = torch.randn(LARGE)
    masks = {"random": torch.rand(LARGE) < 0.5, "padding": torch.arange(LARGE) % 512 < 300}
    for kind, mask in masks.items():
        group = f"replacing masked entries, {LARGE:,} values, mask: {kind}"
        yield Step(group, "`torch.where(mask, x, 0.)`", partial(torch.where, mask, x, 0.0))
        yield Step(group, "`x.masked_fill(~mask, 0.)`", partial(_filled, x, mask))
        yield Step(group, "`x.view(int32) & -mask.to(int32)`", partial(_by_bits, x, mask))
        yield Step(group, "`x * mask`, wrong where `x` is NaN or infinite", partial(torch.mul, x, mask))
        yield Step(group, "the loop of maskgrad", partial(masked_filling, x, mask, 0.0))
        yield Step(group, "for comparison: `x.sum()`", x.sum)


def _filled(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(~mask, 0.0)


def _by_bits(x: Tensor, mask: Tensor) -> Tensor:
    return x.view(torch.int32) & -mask.to(torch.int32)


def _calls() -> Iterator[Step]:
    group = f"one call, {SMALL} values"
    x, leaf = torch.randn(SMALL), torch.randn(SMALL, requires_grad=True)
    masked, mask, grad = mg.masked(x, x > 0), x > 0, torch.ones(SMALL)
    compiled = torch.compile(_doubled)
    compiled(x)
    by_function: Any = _Doubled.apply
    yield Step(group, "`x * 2`", partial(_doubled, x))
    yield Step(group, "`x * 2`, forward and backward", partial(_and_back, _doubled, leaf, grad))
    yield Step(group, "the same as a `torch.autograd.Function`", partial(_and_back, by_function, leaf, grad))
    yield Step(group, "`x * 2`, compiled by `torch.compile`", partial(compiled, x))
    yield Step(group, "`x * 2`, `x` a MaskedTensor", partial(_doubled, masked))
    yield Step(group, "`bool(mask.all())`, a number that is read", lambda: bool(mask.all()))


def _doubled(x: Any) -> Any:
    return x * 2


def _and_back(function: Callable[[Tensor], Tensor], leaf: Tensor, grad: Tensor) -> Any:
    return torch.autograd.grad(function(leaf), leaf, grad)


def _memory() -> Iterator[Step]:
    for megabytes in (2, 64):
        group = f"memory, {megabytes} MB"
        x = torch.randn(megabytes << 18)
        used = partial(torch.add, x, 1, out=torch.zeros_like(x))
        yield Step(group, "`x + 1`, into new memory", partial(torch.add, x, 1))
        yield Step(group, "`torch.add(x, 1, out=y)`, into memory that was used before", used)


def measured(step: Step, rounds: int = ROUNDS) -> float:
    """Microseconds of a step: the median of rounds of many calls, after calls in which things are compiled."""
    seconds(step.call, 20)
    number = min(2000, max(5, int(5e-3 / seconds(step.call, 20))))
    return 1e6 * statistics.median(seconds(step.call, number) for _ in range(rounds))


def table(found: list[Step], times: list[float], facts: dict[str, str]) -> str:
    """A line of Markdown for each step, in groups."""
    lines, group = ["| step | µs |", "| --- | ---: |"], ""
    for step, time in zip(found, times, strict=True):
        if step.group != group:
            group = step.group
            lines.append(f"| **{group}** | |")
        lines.append(f"| {step.name} | {time:,.1f} |" if time < 100 else f"| {step.name} | {time:,.0f} |")
    keys = ("date", "commit", "cpu", "torch")
    date, commit, cpu, version = (facts[key] for key in keys)
    return "\n".join(
        [*lines, "", f"{date.split()[0]}, commit {commit}, {cpu}, one thread, PyTorch {version}."]
    )


def main(
    keep: Annotated[bool, typer.Option("--keep", help="Write the table of the page anew.")] = False,
) -> None:
    """Measure, and print the table."""
    torch.set_num_threads(1)
    facts, found = provenance(), list(steps())
    text = table(found, list(map(measured, found)), facts)
    typer.echo(text)
    if keep:
        page = PAGE.read_text(encoding="utf-8")
        written = f"{BEGIN}\n\n{text}\n\n{END}"
        PAGE.write_text(
            re.sub(f"{BEGIN}.*?{END}", lambda _: written, page, flags=re.DOTALL), encoding="utf-8"
        )


if __name__ == "__main__":
    typer.run(main)
