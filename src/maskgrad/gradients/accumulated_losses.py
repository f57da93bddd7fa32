"""Losses of a micro-batch: the sum that is differentiated, and the number of entries in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor

from maskgrad.gradients.gradient import widened_dtype
from maskgrad.masked_tensor import MaskedTensor, masked

__all__ = [
    "LossSum",
    "Losses",
    "Mean",
    "Part",
    "Summed",
    "check_names",
    "finite",
    "parts_of",
    "summed",
    "together",
]

Mean = Literal["entry", "sequence"]
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
    number: float | Tensor
    """Number of entries, or sum of their weights; a tensor where reading it would need a synchronization."""
    size: float
    """Upper bound of ``number``, known without a synchronization."""

    @property
    def is_empty(self) -> bool:
        """Return whether nothing counts, if known without a synchronization."""
        return not isinstance(self.number, Tensor) and self.number == 0


class Part(NamedTuple):
    """One loss of a micro-batch; ``sum`` is None if the micro-batch lacks it."""

    name: str | None
    weight: float
    sum: Summed | None


@dataclass
class LossSum:
    """Total and count of one loss since the last division.

    Gradients are those of the total times two to the power of minus ``exponent``, which is exact; None: not chosen yet.
    """

    weight: float
    exponent: int | None = None
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
            number = float(part.number)
            self.total += float(part.total) * part.times if number else 0.0
            self.count += number
        self.pending = []
        return {"weight": self.weight, "exponent": self.exponent, "total": self.total, "count": self.count}


def parts_of(
    losses: Losses, count: Any, mask: Any, weights: Mapping[str, float] | None, mean: Mean
) -> list[Part]:
    """Read the arguments of ``GradientAccumulator.backward``."""
    if not isinstance(losses, Mapping):
        if weights is not None:
            raise ValueError(
                "weights= are for several losses in a dict; multiply a single loss by its weight"
            )
        return [Part(None, 1.0, _differentiable(summed(losses, count, mask, mean, "losses is"), "losses is"))]
    if not losses or not all(isinstance(name, str) for name in losses):
        raise ValueError("losses is a dict without names, or with names that are not strings; name each loss")
    for what, given in (("count", count), ("mask", mask), ("weights", weights)):
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(
                f"{what} must be a dict like losses, with the same names, found {type(given).__name__}"
            )
    for what, given in (("count", count), ("mask", mask)):
        unknown = sorted(set(given or ()) - set(losses))
        if unknown:
            raise ValueError(f"{what} has names that losses does not have: {', '.join(map(repr, unknown))}")
    counts, masks = count or {}, mask or {}
    factors = {name: finite(weight, f"weights[{name!r}]") for name, weight in (weights or {}).items()}
    absent, without = sorted(set(factors) - set(losses)), sorted(set(losses) - set(factors))
    if absent and without:
        every = ", ".join(
            f"{name!r}: {weight}" for name, weight in {**dict.fromkeys(without, 1.0), **factors}.items()
        )
        raise ValueError(
            f"weights has {', '.join(map(repr, absent))}, which losses does not have, and losses has "
            f"{', '.join(map(repr, without))} without a weight; correct the name, or if this micro-batch lacks a loss, "
            f"give every loss a weight: weights={{{every}}}"
        )
    parts = []
    for name, loss in losses.items():
        where = f"losses[{name!r}] is"
        read = None
        if loss is not None:
            read = _differentiable(summed(loss, counts.get(name), masks.get(name), mean, where), where)
        parts.append(Part(name, factors.get(name, 1.0), read))
    return parts


def summed(values: Any, count: Any, mask: Any, mean: Mean, name: str) -> Summed:
    """Sum the entries of a MaskedTensor, of a plain tensor with ``mask`` or ``count``, or of a mean with ``count``.

    Raises:
        TypeError, ValueError: it is unknown how many entries count; messages begin with ``name``.
    """
    if not isinstance(values, (Tensor, MaskedTensor)):
        raise TypeError(f"{name} of type {type(values).__name__}; expected a tensor or a MaskedTensor")
    if not values.dtype.is_floating_point:
        raise TypeError(f"{name} of dtype {values.dtype}; expected floating-point numbers")
    number = None if count is None else _count(count)
    if values.ndim == 0:
        if number is None:
            raise ValueError(_REDUCED.format(name=name))
        if mask is not None:
            raise ValueError(
                f"{name} a reduced loss (0-dim), which mask= cannot select from; pass count= alone"
            )
        plain = values.filled(0) if isinstance(values, MaskedTensor) else values
        return Summed(plain, number, number, number)
    if mask is not None:
        if isinstance(values, MaskedTensor):
            raise ValueError(f"{name} masked already; mask= is for plain losses")
        values = masked(values, mask)
    wide = widened_dtype(values.dtype)
    if isinstance(values, MaskedTensor):
        if mean == "sequence" and values.ndim > 1:
            values = values.mean(dim=tuple(range(1, values.ndim)), dtype=wide)
        if number is None:
            specified = values.num_specified()
            number = int(specified) if specified.device.type == "cpu" else specified
        return Summed(values.sum(dtype=wide), 1.0, number, values.numel())
    if number is None:
        raise ValueError(_UNKNOWN.format(name=name, shape=tuple(values.shape)))
    if mean == "sequence" and values.ndim > 1:
        raise ValueError(
            f"{name} a plain tensor of shape {tuple(values.shape)}, and mean='sequence' needs to know which entries "
            "of a sample count; pass mask=, a masked target, or one number for each sample"
        )
    return Summed(values.sum(dtype=wide), 1.0, number, max(values.numel(), number))


def check_names(parts: list[Part], known: Mapping[str | None, LossSum]) -> None:
    """Raise a ValueError if the losses of a micro-batch do not match those of earlier ones."""
    for name, weight, _ in parts:
        if known and (name is None) != (None in known):
            here, there = ("a loss without a name", "losses with names")[:: 1 if name is None else -1]
            raise ValueError(
                f"this micro-batch has {here}, earlier ones had {there}; name the losses of all micro-batches, "
                "or of none"
            )
        if name in known and known[name].weight != weight:
            raise ValueError(
                f"this micro-batch has a loss {name!r} with weight {weight}, earlier ones had {name!r} with weight "
                f"{known[name].weight}; pass the same weight each time"
            )


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
        facts["names"] = "a loss without a name" if losses[0][0] is None else "losses with names"
        facts |= {f"weight of {name}": f"loss {name!r} with weight {weight}" for name, weight, _, _ in losses}
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
    if isinstance(number, (bool, str, bytes)):
        raise TypeError(f"{name} must be a finite number, found {type(number).__name__}")
    try:
        found = float(number)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a finite number, found {type(number).__name__}") from None
    if not math.isfinite(found):
        raise ValueError(f"{name} must be a finite number, found {found}")
    return found


def _count(count: Any) -> float:
    number = finite(count, "count")
    if number < 0:
        raise ValueError(
            f"count must be at least 0, found {count}; pass the number of entries, or the sum of their weights"
        )
    return number


def _differentiable(part: Summed, name: str) -> Summed:
    """Raise a ValueError if counted losses require no gradient."""
    if part.is_empty or part.total.requires_grad:
        return part
    raise ValueError(
        f"{name} not part of a graph: it requires no gradient; compute it without torch.no_grad() and detach()"
    )
