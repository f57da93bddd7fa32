"""Who accumulates together: this process alone, or the ranks that somebody who knows them hands in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from maskgrad.gradients.accumulated_losses import Plan
from maskgrad.gradients.attached import AnyGradient

__all__ = ["Alone", "RanksTogether", "Tally", "found_ranks", "let_ranks_be_found", "there_are_groups"]


class Tally(NamedTuple):
    """What one rank, or all together, have accumulated."""

    plan: Plan | None
    """None: no backward was called."""
    totals: tuple[float, ...]
    counts: tuple[int, ...]
    exponents: tuple[int, ...]
    """Sums of gradients are those of the losses times two to the power of minus this; -1: there are none yet."""
    scale: float = 1.0
    """Of the gradient scaler."""
    mean: str = "entry"


class RanksTogether(Protocol):
    """What several ranks do for an accumulator."""

    size: int
    silenced: bool
    """Whether somebody's exchange is switched off for as long as this is open."""
    in_step: bool
    """Whether every rank has to take part in every backward pass."""

    def agree(self, own: Tally | None, refusal: Exception | None) -> Tally:
        """What all have accumulated; raises on all ranks if one of them refuses, or they do not mean the same."""

    def reduce_shards(self) -> None:
        """Let those that divide parameters among the ranks add up what they have gathered."""

    def exchanged(
        self, params: Sequence[Tensor], gradients: Sequence[AnyGradient | None]
    ) -> list[AnyGradient | None]:
        """The sums over the ranks, nothing written."""

    def close(self) -> None:
        """Switch everything on again."""


class Alone:
    """One process."""

    size, silenced, in_step = 1, False, False

    def agree(self, own: Tally | None, refusal: Exception | None) -> Tally:
        """What this process has."""
        if refusal is not None:
            raise refusal
        assert own is not None
        return own

    def reduce_shards(self) -> None:
        """Nothing is divided."""

    def exchanged(
        self,
        params: Sequence[Tensor],  # noqa: ARG002
        gradients: Sequence[AnyGradient | None],
    ) -> list[AnyGradient | None]:
        """The same."""
        return list(gradients)

    def close(self) -> None:
        """Nothing was switched off."""


Finder = Callable[[nn.Module | None, Sequence[Tensor], Any], RanksTogether]
_FINDERS: list[Finder] = []


def let_ranks_be_found(finder: Finder) -> None:
    """Where there is a process group, ``finder(module, params, group)`` says who accumulates together."""
    _FINDERS.append(finder)


def found_ranks(module: nn.Module | None, params: Sequence[Tensor], group: Any) -> RanksTogether:
    """This process alone where there is no process group."""
    if _FINDERS and (there_are_groups() or group is not None):
        return _FINDERS[-1](module, params, group)
    return Alone()


def there_are_groups() -> bool:
    """Whether a process group has been initialised."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
