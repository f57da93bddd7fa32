"""What the experiments share: the case that is examined, and what is hidden in it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.doctor.comparison import Difference, compare_twins
from maskgrad.doctor.findings import Note
from maskgrad.doctor.inferred import ObservedUse
from maskgrad.doctor.inventory import Part, Skipped
from maskgrad.doctor.operations import same
from maskgrad.doctor.packed import Documents
from maskgrad.doctor.padding import Padding
from maskgrad.doctor.recorder import Recorder
from maskgrad.doctor.report import Experiment, Report
from maskgrad.doctor.runner import Outcome, StepRunner
from maskgrad.doctor.twins import Twins
from maskgrad.doctor.variants import other_contents, rows_of

__all__ = ["Examination", "PerturbedInput", "randomize_padding", "run_perturbed"]


@dataclass(frozen=True)
class PerturbedInput:
    """Input that must have no influence, and is rewritten: padding, other documents, later positions."""

    #: of a finding, and the name of the experiment
    kind: str
    #: where it is, as padding of each tensor
    paddings: list[Padding]
    #: its name in messages, and that of what it must not influence
    noun: str = "padding"
    others: str = "real entries"
    #: the batch in which only the others count; None: as it is
    batch: Any = None


@dataclass
class Examination:
    """What the experiments share."""

    runner: StepRunner
    paddings: list[Padding] = field(default_factory=list)
    report: Report = field(default_factory=Report)
    #: its parts, by what the first run has shown
    inventory: Callable[..., list[Part]] = field(init=False)
    #: what the first run has shown
    use: ObservedUse | None = None
    #: which document each token belongs to, in a packed batch
    documents: Documents | None = None
    #: the experiments that were asked for by name
    asked: frozenset[str] = frozenset()
    #: whether the program as it is gives NaN
    gives_nan: bool = False
    #: for each key of the batch, the experiments that changed it
    examined: dict[Key, list[str]] = field(default_factory=dict)
    #: results of the program as it is, by experiment
    base: dict[str, Any] = field(default_factory=dict)
    #: what differed when the program as it is ran once more
    differs: list[str] = field(default_factory=list)
    is_repeated: bool = False

    @functools.cached_property
    def count(self) -> int:
        """The number of samples."""
        return rows_of(self.runner.batch, self.paddings)

    def repeat(self, outcome: Outcome) -> None:
        """The program as it is has run once more: note what differs from its first run."""
        first, second = self.base["first"].tensors(), outcome.tensors()
        names = () if self.is_repeated else dict.fromkeys((*first, *second))
        self.differs = [
            n for n in names if n not in first or n not in second or not same(first[n], second[n])
        ]
        self.is_repeated = True

    def tried(self, name: str, changed: str, result: str, keys: Iterable[Key] = ()) -> None:
        """Write down what was done, and to which parts of the batch."""
        self.report.experiments.append(Experiment(name, changed, result))
        for key in keys:
            made = self.examined.setdefault(key, [])
            made += [name] * (name not in made)

    def skipped(self, experiment: str, why: str, option: str = "") -> None:
        """Write down what was asked for, or detected, and is not examined."""
        self.report.skip(Skipped(experiment, why, option))

    def note(self, about: str, message: str, place: Any = None) -> None:
        """Write down what is no fault."""
        self.report.note(Note.at(place, about, message))


def run_perturbed(
    case: Examination, paddings: list[Padding], kind: str, seed: int = 0, batch: Any = None
) -> tuple[Difference, list[Key], Twins]:
    """A run with other contents in some padding: what differs from its twins, and the keys that were changed."""
    mode, as_it_is = Twins(), batch is None
    batch = case.runner.batch if as_it_is else batch
    changed = randomize_padding(mode, batch, paddings, kind, seed)
    if not changed:
        return Difference(), changed, mode

    def compared(outcome: Outcome) -> Difference:
        if as_it_is:
            case.repeat(outcome)
        return compare_twins(mode, outcome, batch, paddings)

    return case.runner.run(mode, batch, after=compared), changed, mode


def randomize_padding(
    mode: Twins, batch: Any, paddings: list[Padding], kind: str, seed: int = 0
) -> list[Key]:
    """Give the padded tensors of a batch twins with other padding; the keys of those that have one."""
    inside, done = fields(batch), []
    for padding in paddings:
        tensor = tensor_of(inside[padding.key]).detach()
        real = padding.entries(tensor)
        other = other_contents(tensor, real, kind, seed)
        if other is None:
            continue
        padded = tensor[~real]
        # integers, and numbers that are all the same: a program may test for what stands there
        sentinel = not tensor.is_floating_point() or bool((padded == padded[:1]).all())
        mode.set_twin(tensor, other, sentinel=sentinel)
        if isinstance(mode, Recorder):
            mode.validity.set(tensor, real)
        done.append(padding.key)
    return done
