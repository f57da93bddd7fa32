"""The losses of a micro-batch: the sum that is differentiated, and how many losses there are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from maskgrad.gradients.gradient import widened_dtype
from maskgrad.masked_tensor import MaskedTensor, masked
from maskgrad.masked_tensor.tensor import stored_of

__all__ = ["ONE", "LossSum", "Losses", "Mean", "Part", "Plan", "parts_of"]

Mean = Literal["entry", "sequence"]
Losses = Tensor | MaskedTensor | Mapping[str, Tensor | MaskedTensor | None]

_REDUCED = (
    "{name} a reduced loss (0-dim) without count=, so that the number of its entries is unknown: pass count=, or an "
    'unreduced loss, from reduction="none"'
)
_UNKNOWN = (
    "{name} a plain tensor of shape {shape} without count= or mask=, so that it is unknown which of its entries count "
    "(ignore_index leaves zeros in it): pass count=, mask=, or a masked target"
)


class Part(NamedTuple):
    """One loss of a micro-batch: the sum of ``loss * times`` is that of ``number`` entries."""

    loss: Tensor | None
    """In a graph. None: this micro-batch lacks the loss."""
    times: int
    number: int | Tensor
    """A tensor where an int would need a synchronization."""
    size: int
    """At least as many as ``number``, known without a synchronization."""
    mask: Tensor | None = None
    """Of which of its entries it is the sum; None: of all."""

    @property
    def nothing_counts(self) -> bool:
        """Whether there is nothing to differentiate, as far as is known; ``0 * nan`` would be NaN."""
        return isinstance(self.number, int) and self.number == 0

    def total(self) -> Tensor:
        """The sum of the entries, detached, in at least float32."""
        assert self.loss is not None
        values = self.loss.detach()
        if not values.ndim:
            return values
        if self.mask is not None:
            values = torch.where(self.mask, values, 0)
        return values.sum(dtype=widened_dtype(values.dtype))

    def direction(self, seed: Tensor) -> Tensor:
        """The gradient by ``loss`` if ``seed`` is that by its sum."""
        assert self.loss is not None
        if self.mask is not None:
            return torch.where(self.mask, seed, 0)
        return seed.expand_as(self.loss) if self.loss.ndim else seed


class Plan(NamedTuple):
    """What must be the same in all micro-batches of a step, on all ranks."""

    names: tuple[str, ...] | None
    """Of the losses; None: one loss, without a name."""
    weights: tuple[float, ...]

    def described(self) -> str:
        """For messages."""
        if self.names is None:
            return "one loss"
        named = zip(self.names, self.weights, strict=True)
        return "; ".join(f"a loss {n.replace(';', ',')!r} with weight {w}" for n, w in named)


class LossSum:
    """The losses of one name since the last division.

    Sums are those of the losses times two to the power of minus ``exponent``, which is exact; -1: not known yet. Where
    ``expected`` is not 0 they are divided by that number instead, that of the step before: a step with as many losses
    needs no division then.
    """

    __slots__ = ("counts", "expected", "exponent", "values")

    def __init__(self, exponent: int, expected: int) -> None:
        self.exponent, self.expected = exponent, expected
        self.values: list[tuple[Any, int]] = []
        self.counts: list[int | Tensor] = []

    def scaled(self, number: int) -> float:
        """The factor with which a loss of so many entries is in the sums."""
        if self.expected:
            return number / self.expected
        return math.ldexp(number, -max(self.exponent, 0))

    def count(self) -> int:
        """The number of losses in the sums."""
        return int(sum(self.counts))

    def total(self) -> float:
        """The sum of all losses, of many in one transfer."""
        losses = [loss for loss, _ in self.values]
        if any(isinstance(loss, Tensor) for loss in losses):
            device = next(loss.device for loss in losses if isinstance(loss, Tensor))
            losses = torch.stack([torch.as_tensor(loss, device=device) for loss in losses]).tolist()
        return math.fsum(loss * times for loss, (_, times) in zip(losses, self.values, strict=True) if times)


ONE = Plan(None, (1.0,))
NOTHING = Part(None, 0, 0, 0)


def parts_of(
    losses: Losses, count: Any, mask: Any, weights: Mapping[str, float] | None, mean: Mean
) -> tuple[Plan, list[Part]]:
    """Read the arguments of one call."""
    counted = type(count) is int and count > 0 and mask is None and weights is None
    if counted and type(losses) is Tensor and losses.ndim == 0 and losses.requires_grad:  # as most often
        return ONE, [Part(losses, count, count, count)]
    if not isinstance(losses, Mapping):
        if weights is not None:
            raise ValueError(
                "weights= are for several losses in a dict; multiply a single loss by its weight"
            )
        return ONE, [_part(losses, count, mask, mean, "losses is")]
    if not losses or not all(isinstance(name, str) for name in losses):
        raise ValueError("losses is a dict without names, or with names that are no strings; name each loss")
    for what, given in (("count", count), ("mask", mask), ("weights", weights)):
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(
                f"{what} must be a dict like losses, with the same names, found {type(given).__name__}"
            )
        unknown = sorted(set(given or ()) - set(losses))
        if unknown:
            raise ValueError(f"{what} has names that losses lacks: {', '.join(map(repr, unknown))}")
    names = tuple(sorted(losses))
    counts, masks, factors = count or {}, mask or {}, weights or {}
    parts = [
        _part(losses[n], counts.get(n), masks.get(n), mean, f"losses[{n!r}] is", optional=True) for n in names
    ]
    return Plan(names, tuple(_weight(n, factors.get(n, 1.0)) for n in names)), parts


def _part(loss: Any, count: Any, mask: Any, mean: Mean, name: str, optional: bool = False) -> Part:
    if loss is None and optional:
        return NOTHING
    if not isinstance(loss, (Tensor, MaskedTensor)):
        raise TypeError(f"{name} of type {type(loss).__name__}; expected a tensor or a MaskedTensor")
    if not loss.dtype.is_floating_point:
        raise TypeError(f"{name} of dtype {loss.dtype}; losses are floating-point numbers")
    number = None if count is None else _count(count)
    if loss.ndim == 0:
        if number is None:
            raise ValueError(_REDUCED.format(name=name))
        if mask is not None:
            raise ValueError(
                f"{name} a reduced loss (0-dim), which mask= cannot select from; pass count= alone"
            )
        plain = loss.filled(0) if isinstance(loss, MaskedTensor) else loss
        return _differentiable(Part(plain, number, number, number), name)
    if mask is not None:
        if isinstance(loss, MaskedTensor):
            raise ValueError(f"{name} masked already; mask= is for plain losses")
        loss = masked(loss, mask)
    if isinstance(loss, MaskedTensor):
        per = loss
        if mean == "sequence" and loss.ndim > 1:
            per = loss.mean(dim=tuple(range(1, loss.ndim)), dtype=widened_dtype(loss.dtype))
        specified = per.num_specified()
        counted = number
        if counted is None:  # as an int where that does not synchronize
            counted = int(specified) if specified.device.type == "cpu" else specified
        if stored_of(per) is not None:
            total = per.sum(dtype=widened_dtype(per.dtype))
            return _differentiable(Part(total, 1, counted, per.numel()), name)
        values, known = per._dense()
        return _differentiable(Part(values, 1, counted, per.numel(), known), name)
    if number is None:
        raise ValueError(_UNKNOWN.format(name=name, shape=tuple(loss.shape)))
    if mean == "sequence" and loss.ndim > 1:
        raise ValueError(
            f"{name} a plain tensor of shape {tuple(loss.shape)}, and mean='sequence' needs to know which entries "
            "of a sample count: pass mask=, a masked target, or one number for each sample"
        )
    return _differentiable(Part(loss, 1, number, max(loss.numel(), number)), name)


def _differentiable(part: Part, name: str) -> Part:
    """The same; ValueError if something counts that requires no gradient."""
    if part.nothing_counts:
        return part._replace(times=0)
    assert part.loss is not None
    if not part.loss.requires_grad:
        raise ValueError(
            f"{name} not part of a graph: it requires no gradient; compute it without torch.no_grad() and detach()"
        )
    return part


def _count(count: Any) -> int:
    if type(count) is int and count >= 0:
        return count
    if isinstance(count, Tensor):
        if count.numel() != 1 or count.dtype is torch.bool or count.is_complex():
            raise TypeError(
                f"count must be one number, found a tensor of shape {tuple(count.shape)} and {count.dtype}"
            )
        count = count.item()
    try:
        number = float(count)
    except (TypeError, ValueError):
        raise TypeError(f"count must be a whole number, found {type(count).__name__}") from None
    if isinstance(count, bool):
        raise TypeError("count must be a whole number, found a bool")
    if math.isnan(number) or number < 0 or not number.is_integer():
        raise ValueError(f"count must be a whole number, at least 0, found {count}")
    return int(count)


def _weight(name: str, weight: Any) -> float:
    number = float(weight)
    if not math.isfinite(number):
        raise ValueError(f"the weight of loss {name!r} must be a finite number, found {weight}")
    return number
