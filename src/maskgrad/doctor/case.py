"""What the experiments share: the case that is examined, what is hidden in it, and what differs between two runs."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.doctor.inferred import ObservedUse
from maskgrad.doctor.operations import dense, differing, same
from maskgrad.doctor.packed import Documents
from maskgrad.doctor.padding import Padding
from maskgrad.doctor.recorder import Recorder
from maskgrad.doctor.report import Report
from maskgrad.doctor.runner import Outcome, StepRunner
from maskgrad.doctor.twins import Twins
from maskgrad.doctor.variants import other_contents, rows_of

__all__ = [
    "IN_DOUBLE", "SMALL", "Difference", "Examination", "PerturbedInput", "compare", "compare_twins", "ends_of",
    "not_close", "randomize_padding", "run_perturbed",
]  # fmt: skip

#: relative to the largest entry: when shapes differ, sums are taken in another order
_RELATIVE = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 4e-2}
#: entries of a gradient that are this much smaller than the largest gradient of the step may be rounding
_SMALL = 1e-1
#: a finding that is smaller says how small
SMALL = 1e-3
#: relative differences that may be rounding in float32, and may be a leak: of the same sums, and of others
_DOUBTFUL = {True: (0.0, 5e-6), False: (2e-5, SMALL)}
#: how such a difference is decided
IN_DOUBLE = "model.double() and float64 to the batch: rounding vanishes there, and a leak stays"


@dataclass
class Difference:
    """What differs between two runs."""

    loss: tuple[float, float] | None = None
    gradients: dict[str, float] = field(default_factory=dict)
    #: whether some entry that differs is infinite or NaN in neither run
    finite: bool = False
    #: the largest difference, relative to the loss or to the gradient, also where it is within rounding
    relative: float = 0.0
    #: whether twins were compared, and some entries are not float64
    exact: bool = False
    is_single: bool = False

    def __bool__(self) -> bool:
        return self.loss is not None or bool(self.gradients)

    @property
    def is_doubtful(self) -> bool:
        """Whether it may be rounding."""
        low, high = _DOUBTFUL[self.exact]
        return self.is_single and low < self.relative <= high

    def add(self, a: Tensor, b: Tensor, scale: float = 0.0) -> float | None:
        """The largest difference of two tensors if it counts: relative to ``scale`` if the entries are smaller."""
        worst, relative, finite = _apart(a, b, scale)
        self.relative = max(self.relative, relative)
        self.is_single |= bool(worst) and a.dtype != torch.float64
        rounding = _RELATIVE.get(a.dtype, 1e-4) if not self.exact else 1e-12 * (a.dtype == torch.float64)
        if not worst or relative <= rounding:
            return None
        self.finite |= finite
        return worst

    def words(self) -> str:
        """The difference as part of a sentence."""
        parts = []
        if self.loss is not None:
            parts.append(f"the loss is {self.loss[0]:.6g} before, {self.loss[1]:.6g} after")
        if self.gradients:
            sizes = {name: math.inf if math.isnan(size) else size for name, size in self.gradients.items()}
            worst = max(sizes, key=sizes.__getitem__)
            others = f" and {len(self.gradients) - 1} more" if len(self.gradients) > 1 else ""
            parts.append(f"the gradient of {worst}{others} changes by up to {self.gradients[worst]:.3g}")
        return "; ".join(parts)


def compare(before: Outcome, after: Outcome, *, exact: bool = False, count: int | None = None) -> Difference:
    """Loss and gradients of two runs: more than rounding, or ``exact``; a gradient that is absent counts as zero.

    If ``count`` rows change places, gradients that have them along a dimension move with them.
    """
    difference = Difference(exact=exact)
    if before.loss is not None and after.loss is not None and before.loss.numel() == 1:
        first, second = before.loss.reshape(()), after.loss.reshape(())
        if difference.add(first, second):
            difference.loss = (float(first), float(second))
    pairs = {}
    for name in dict.fromkeys((*before.gradients, *after.gradients)):
        ours = (before if name in before.gradients else after).gradients[name]
        is_in_both = name in before.gradients and name in after.gradients
        moves = count is not None and name in before.own | after.own
        if moves and (not is_in_both or count in ours.shape):
            continue
        other = after.gradients[name] if is_in_both else torch.zeros_like(dense(ours))
        if ours.shape == other.shape:
            pairs[name] = (ours, other)
    apart = {name: pair for name, pair in pairs.items() if pair[0] is not pair[1] and not same(*pair)}
    sizes = [_largest(dense(pair[0])) for pair in pairs.values()] if apart else []
    # what cancels in a small gradient is as large as elsewhere
    scale = _SMALL * max(filter(math.isfinite, sizes), default=0.0)
    for name, (ours, other) in apart.items():
        worst = difference.add(dense(ours), dense(other), scale)
        if worst is not None:
            difference.gradients[name] = worst
    return difference


def compare_twins(mode: Twins, outcome: Outcome, batch: Any = None, paddings: Any = ()) -> Difference:
    """Loss and gradients of a run and those of its twins; gradients of the batch itself where it is real.

    What is no scalar, such as the root of a backward pass inside a checkpoint, may hold padding: its gradients tell.
    """
    by_key = {padding.key: padding for padding in paddings}
    by_id = {id(tensor_of(held)): by_key.get(key) for key, held in fields(batch).items()}
    real = {name: padding for name, leaf in outcome.leaves.items() if (padding := by_id.get(id(leaf)))}

    def counted(name: str, gradient: Tensor) -> Tensor:
        return gradient[real[name].entries(gradient)] if name in real else gradient

    twins = {name: counted(name, mode.other(gradient)) for name, gradient in outcome.gradients.items()}
    gradients = {name: counted(name, gradient) for name, gradient in outcome.gradients.items()}
    loss = None if outcome.loss is None else mode.other(outcome.loss)
    return compare(Outcome(outcome.loss, gradients), Outcome(loss, twins), exact=True)


def ends_of(outcome: Outcome, difference: Difference) -> list[Tensor]:
    """The loss if it differs, else the gradients that do."""
    if difference.loss is not None and outcome.loss is not None:
        return [outcome.loss]
    return [outcome.gradients[name] for name in difference.gradients if name in outcome.gradients]


def _largest(tensor: Tensor) -> float:
    return tensor.abs().max().item() if tensor.numel() else 0.0


def _apart(a: Tensor, b: Tensor, scale: float = 0.0) -> tuple[float, float, bool]:
    """The largest difference, also relative to the largest entry, and whether one is finite; NaN equals NaN."""
    if not a.numel():
        return 0.0, 0.0, False
    apart = (a - b).abs()
    worst = apart.max().item()
    finite = bool(worst)
    if not math.isfinite(worst):  # infinity minus itself, or zero times what is not real
        apart = apart[differing(a, b)]
        worst = apart.max().item() if apart.numel() else 0.0
        finite = bool((apart.isfinite() & (apart != 0)).any())
    size = max(_largest(a), _largest(b), scale) if worst else 1.0
    relative = worst / size if size and math.isfinite(worst) and math.isfinite(size) else math.inf
    return worst, relative, finite


def not_close(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape differ by more than rounding; NaN equals NaN."""
    return not same(a, b) and _apart(a, b)[1] > _RELATIVE.get(a.dtype, 1e-4)


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
    #: what the first run has shown
    use: ObservedUse | None = None
    #: which document each token belongs to, in a packed batch
    documents: Documents | None = None
    #: the experiments that were asked for by name
    asked: frozenset[str] = frozenset()
    #: how many ranks are simulated
    ranks: int = 1
    #: whether the program as it is gives NaN
    gives_nan: bool = False
    #: results of the program as it is, by experiment
    base: dict[str, Any] = field(default_factory=dict)
    #: what differed when the program as it is ran once more; None if it did not yet
    differs: list[str] | None = None

    @functools.cached_property
    def count(self) -> int:
        """The number of samples."""
        return rows_of(self.runner.batch, self.paddings)

    def repeat(self, outcome: Outcome) -> None:
        """The program as it is has run once more: note what differs from its first run."""
        if self.differs is None:
            first, second = self.base["first"].tensors(), outcome.cloned().tensors()
            names = dict.fromkeys((*first, *second))
            both = first.keys() & second.keys()
            self.differs = [name for name in names if name not in both or not same(first[name], second[name])]


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


def randomize_padding(mode: Twins, batch: Any, paddings: list[Padding], kind: str, seed: int) -> list[Key]:
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
