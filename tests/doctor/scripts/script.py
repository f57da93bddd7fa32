"""What a program of this corpus is, and how the doctor judges it: ``examine`` of its step, ``watch`` of its loop.

A program is a function of ``wrong`` that returns a :class:`Script`; the comment ``# leak`` marks the line that must be
named. Its module has the layers that ``forward`` and ``loss`` use, and is called with the entries of the batch that
``forward`` names. ``real`` says which entries are no padding: from it the tests compute, without the doctor, that the
loss of the wrong program depends on padding and that of the right one does not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from maskgrad import doctor
from tests.doctor import pairs
from tests.doctor.pairs import marked

__all__ = [
    "Program",
    "Script",
    "classes",
    "depends_on_padding",
    "floats",
    "ids",
    "judged",
    "lasting",
    "program",
    "programs",
    "report_of",
]

LENGTHS = (7, 5, 4, 2)
WAYS = ("examine", "watch")
WRONG = {True: "wrong", False: "right"}
_PROGRAMS: list[Program] = []


def lasting(*lengths: int) -> Tensor:
    """The mask of rows of these lengths, (B, T), True = real."""
    return pairs.lasting(*(lengths or LENGTHS))


def ids(real: Tensor) -> Tensor:
    """Ids from 1 to 19, 0 in the padding."""
    return torch.randint(1, 20, real.shape) * real


def floats(real: Tensor, *width: int) -> Tensor:
    """Numbers, 0 in the padding."""
    return torch.randn(*real.shape, *width) * real.reshape(*real.shape, *[1] * len(width))


def classes(count: int = len(LENGTHS)) -> Tensor:
    return torch.arange(count) % 5


def _classified(out: Tensor, batch: dict[str, Any]) -> Tensor:
    return F.cross_entropy(out, batch["y"])


@dataclass
class Script:
    """One program, wrong or right.

    Attributes:
        batch: all that the program reads.
        forward: the model; its arguments are keys of the batch.
        loss: of the model's output and the batch.
        real: the mask of the padded entries of the batch, True = real, by key.
        loader: whether the batch comes from a DataLoader; otherwise only the model's arguments are seen.
        options: further options of the doctor, such as ``causal``.
    """

    batch: dict[str, Any]
    forward: Callable[..., Any]
    loss: Callable[[Any, dict[str, Any]], Tensor] = _classified
    real: dict[str, Tensor] = field(default_factory=dict)
    loader: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    wrap: Callable[[nn.Module], Callable[..., Any]] = lambda model: model
    train: Callable[[Callable[[dict[str, Any]], Tensor], dict[str, Any]], None] | None = None

    def __post_init__(self) -> None:
        self.model = nn.Module()
        for function in (self.forward, self.loss):
            for name, held in inspect.getclosurevars(function).nonlocals.items():
                if isinstance(held, nn.Module):
                    self.model.add_module(name, held)
        self.model.forward = self.forward
        self.called = self.wrap(self.model)
        self._arguments = list(inspect.signature(self.forward).parameters)

    def step(self, batch: dict[str, Any]) -> Tensor:
        return self.loss(self.called(*(batch[name] for name in self._arguments)), batch)

    def run(self, steps: int = 3) -> None:
        """The training loop."""
        batches: Any = [self.batch] * steps
        if self.loader:
            batches = DataLoader(batches, batch_size=None, collate_fn=lambda batch: batch)
        optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        for batch in batches:
            optimizer.zero_grad()
            if self.train is None:
                self.step(batch).backward()
            else:
                self.train(self.step, batch)
            optimizer.step()


@dataclass(frozen=True)
class Program:
    """A function that makes a script, and what the doctor has to say about it."""

    make: Callable[[bool], Script]
    kinds: tuple[str, ...]
    ways: tuple[str, ...]
    source: Callable[..., Script]
    unpadded: bool

    @property
    def name(self) -> str:
        return f"{self.make.__module__.rpartition('.')[2]}.{self.make.__name__}"

    def script(self, *, wrong: bool) -> Script:
        torch.manual_seed(0)
        return self.make(wrong)


def program(
    *kinds: str,
    ways: tuple[str, ...] = WAYS,
    source: Callable[..., Script] | None = None,
    unpadded: bool = False,
) -> Any:
    """Add a program to the corpus.

    Args:
        kinds: the kinds of findings of which one is expected, by default padding-leak.
        ways: how it is judged.
        source: the function in which the line is marked, by default the program.
        unpadded: nothing is padded in the right program, so that "incomplete" is a right verdict, too.
    """

    def add(make: Callable[[bool], Script]) -> Callable[[bool], Script]:
        _PROGRAMS.append(Program(make, kinds or ("padding-leak",), ways, source or make, unpadded))
        return make

    return add


def programs() -> list[Program]:
    return list(_PROGRAMS)


def report_of(script: Script, way: str, steps: int = 3) -> doctor.Report:
    if way == "examine":
        return doctor.examine(script.step, script.batch, model=script.model, **script.options)
    with doctor.watch(steps=min(steps, 2), **script.options) as watched:
        script.run(steps)
    return watched.report


def judged(program: Program, way: str, *, wrong: bool) -> str:
    """``right``, or how the judgement differs from the expected one."""
    report = report_of(program.script(wrong=wrong), way)
    if not wrong:
        allowed = ("ok", "incomplete") if program.unpadded else ("ok",)
        return "right" if report.verdict in allowed else f"{report.verdict}: {report.kinds()}"
    if report.verdict != "found":
        return "missed" if report.verdict == "ok" else "incomplete"
    first = next((finding for finding in report.findings if finding.kind in program.kinds), None)
    if first is None:
        return f"another kind: {report.kinds()}"
    return "right" if (first.file, first.line) in marked(program.source) else f"another line: {first.code}"


@torch.no_grad()
def depends_on_padding(script: Script) -> bool:
    """Whether the loss changes with other contents in the padding, computed without the doctor.

    Numbers are rewritten; ids of padding keep their value, by which programs know them, and get another vector.
    """
    before, changed = script.step(script.batch), dict(script.batch)
    for key, real in script.real.items():
        data = changed[key]
        if data.is_floating_point():
            wide = real.reshape(*real.shape, *[1] * (data.ndim - real.ndim))
            changed[key] = torch.where(wide, data, data.roll(1, -1) + 1.5)
    for module in script.model.modules():
        if isinstance(module, nn.Embedding):
            module.weight[0] += torch.randn(module.embedding_dim)
    return not torch.allclose(before, script.step(changed), atol=1e-6)
