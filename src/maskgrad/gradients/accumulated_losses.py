"""Losses of a micro-batch: the sum that is differentiated, and the number of entries in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from maskgrad.documents.aggregation import How, sum_and_count
from maskgrad.gradients.gradient import widened_dtype
from maskgrad.masked_tensor import MaskedTensor, masked

__all__ = ["LossSum", "Losses", "Part", "Summed", "check_names", "finite", "parts_of", "summed", "together"]

Losses = Tensor | MaskedTensor | Mapping[str, Tensor | MaskedTensor | None]

_REDUCED = (
    "{name} a reduced loss (0-dim) without count=, so it is not known how many entries it averages; pass count=, or an "
    'unreduced loss, from reduction="none"'
)
_UNKNOWN = (
    "{name} a plain tensor of shape {shape} without count= or mask=, so it is unknown which entries count "
    "(ignore_index leaves zeros in it); pass count=, mask=, or a masked target"
)


class Summed(NamedTuple):
    """The sum of the entries of a tensor: ``total * times``."""

    total: Tensor
    """0-dim, in the graph of the entries."""
    times: float
    number: float
    """Number of entries, or sum of their weights."""


class Part(NamedTuple):
    """One loss of a micro-batch; ``sum`` is None if the micro-batch lacks it."""

    name: str | None
    weight: float
    sum: Summed | None


@dataclass
class LossSum:
    """Total and count of one loss since the last division."""

    weight: float
    exponent: int | None = None
    """Gradients are those of the total times two to the power of minus this, which is exact; None: not chosen yet."""
    total: float = 0.0
    count: float = 0.0
    pending: list[Summed] = field(default_factory=list)
    """Detached parts not yet added to total and count, as reading them waits for a GPU."""

    def scaled(self, number: float) -> float:
        """Factor of the gradients of a loss that counts ``number`` times."""
        return math.ldexp(number, -(self.exponent or 0))

    def read(self) -> dict[str, Any]:
        """Weight, exponent, total and count as Python numbers."""
        for part in self.pending:
            self.total += float(part.total) * part.times if part.number else 0.0
            self.count += part.number
        self.pending = []
        return {"weight": self.weight, "exponent": self.exponent, "total": self.total, "count": self.count}


def parts_of(
    losses: Losses, count: Any, mask: Any, weights: Mapping[str, float] | None, documents: Any, *, how: How,
    constant: float | None = None,
) -> list[Part]:  # fmt: skip
    """Read the arguments of ``GradientAccumulator.backward``."""
    if not isinstance(losses, Mapping):
        if weights is not None:
            raise ValueError(
                "weights= are for several losses in a dict; multiply a single loss by its weight"
            )
        only = summed(losses, count, mask, how, "losses is", documents, constant)
        return [Part(None, 1.0, _differentiable(only, "losses is"))]
    if not losses or not all(isinstance(name, str) for name in losses):
        raise ValueError("losses is a dict without names, or with names that are not strings; name each loss")
    by_name = {"count": count, "mask": mask, "weights": weights, "documents": documents}
    for what, given in by_name.items():
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(
                f"{what} must be a dict like losses, with the same names, found {type(given).__name__}"
            )
        unknown = sorted(set(given or ()) - set(losses))
        # Weights may name losses that this micro-batch lacks, if they name all.
        if unknown and (what != "weights" or set(losses) - set(given or ())):
            raise ValueError(
                f"{what} has {', '.join(map(repr, unknown))}, which losses does not have; correct the name, or if this "
                "micro-batch lacks a loss, give every loss a weight"
            )
    parts = []
    for name, loss in losses.items():
        read = None
        if loss is not None:
            own_count, own_mask, ids = ((given or {}).get(name) for given in (count, mask, documents))
            found = summed(loss, own_count, own_mask, how, where := f"losses[{name!r}] is", ids, constant)
            read = _differentiable(found, where)
        parts.append(Part(name, finite((weights or {}).get(name, 1.0), f"weights[{name!r}]"), read))
    return parts


def summed(
    values: Any, count: Any, mask: Any, how: How, name: str, documents: Any, constant: float | None
) -> Summed:
    """Sum the entries of a MaskedTensor, of a plain tensor with ``mask`` or ``count``, or of a mean with ``count``."""
    if not isinstance(values, (Tensor, MaskedTensor)):
        raise TypeError(f"{name} of type {type(values).__name__}; expected a tensor or a MaskedTensor")
    if not values.dtype.is_floating_point:
        raise TypeError(f"{name} of dtype {values.dtype}; expected floating-point numbers")
    number = None if count is None else finite(count, "count")
    if number is not None and number < 0:
        raise ValueError(
            f"count must be at least 0, found {count}; pass the number of entries, or the sum of their weights"
        )
    if values.ndim == 0:
        if number is None:
            raise ValueError(_REDUCED.format(name=name))
        if mask is not None:
            raise ValueError(
                f"{name} a reduced loss (0-dim), which mask= cannot select from; pass count= alone"
            )
        plain = values.filled(0) if isinstance(values, MaskedTensor) else values
        return Summed(plain, number, number)
    if mask is not None:
        if isinstance(values, MaskedTensor):
            raise ValueError(f"{name} masked already; mask= is for plain losses")
        values = masked(values, mask)
    if isinstance(values, MaskedTensor) or documents is not None:
        total, found = sum_and_count(values, how, documents, constant)
        return Summed(total, 1.0, int(found) if number is None else number)
    if number is None:
        raise ValueError(_UNKNOWN.format(name=name, shape=tuple(values.shape)))
    if how != "token-mean" and values.ndim > 1:
        raise ValueError(
            f"{name} a plain tensor of shape {tuple(values.shape)}, and mean={how!r} needs to know which entries "
            "of a sample count; pass mask=, documents=, a masked target, or one number for each sample"
        )
    total = values.sum(dtype=widened_dtype(values.dtype))
    return Summed(total if constant is None else total / constant, 1.0, number)


def check_names(parts: list[Part], known: Mapping[str | None, LossSum]) -> None:
    """Raise a ValueError if the losses of a micro-batch do not match those of earlier ones."""
    earlier = _facts((name, loss.weight) for name, loss in known.items())
    for what, here in _facts((name, weight) for name, weight, _ in parts).items():
        there = earlier.get(what, here)
        if here != there:
            raise ValueError(
                f"this micro-batch has {here}, earlier ones had {there}; name the losses of all micro-batches, or of "
                "none, and pass the same weight each time"
            )


def _facts(losses: Iterable[tuple[str | None, float]]) -> dict[str, str]:
    """What losses with weights must have in common."""
    facts = {}
    for name, weight in losses:
        facts["names"] = "a loss without a name" if name is None else "losses with names"
        facts[f"weight of {name}"] = f"a loss {name!r} with weight {weight}"
    return facts


def together(
    tallies: list[dict[str, Any] | None],
) -> dict[str | None, tuple[float, float, float]]:
    """Weight, total and count of each loss over all ranks."""
    found: dict[str | None, tuple[float, float, float]] = {}
    agreed: dict[str, tuple[int, str]] = {}
    for rank, tally in enumerate(tallies):
        if tally is None:
            continue
        losses = tally["losses"]
        facts = {"mean": f"mean={tally['mean']!r}", "scale": f"a loss scale of {tally['scale']}"}
        facts |= _facts((name, weight) for name, weight, _, _ in losses)
        for what, here in facts.items():
            first, there = agreed.setdefault(what, (rank, here))
            if here != there:
                raise ValueError(
                    f"GradientAccumulator: the ranks disagree; nothing was divided. Rank {first} has {there}, rank "
                    f"{rank} has {here}; make them equal"
                )
        for name, weight, total, count in losses:
            _, totals, counts = found.get(name, (weight, 0.0, 0.0))
            found[name] = weight, totals + total, counts + count
    if not found:
        raise RuntimeError("finish() without a backward() since the last one, on any rank; nothing to divide")
    return found


def finite(number: Any, name: str) -> float:
    """Raise a TypeError or ValueError unless it is a finite number, or a tensor with one element."""
    if isinstance(number, Tensor):
        if number.numel() != 1 or number.dtype.is_complex:
            raise TypeError(
                f"{name} must be a scalar, found a tensor of shape {tuple(number.shape)} and {number.dtype}"
            )
        number = number.item()
    if isinstance(number, bool) or not hasattr(number, "__float__"):
        raise TypeError(f"{name} must be a finite number, found {type(number).__name__}")
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, found {number}")
    return float(number)


def _differentiable(part: Summed, name: str) -> Summed:
    """Raise a ValueError if counted losses require no gradient."""
    if not part.number or part.total.requires_grad:
        return part
    raise ValueError(
        f"{name} not part of a graph: it requires no gradient; compute it without torch.no_grad() and detach()"
    )
