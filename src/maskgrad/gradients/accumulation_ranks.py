"""Who accumulates together: this process alone, or the ranks that ``maskgrad.distributed`` finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from maskgrad.gradients.accumulated_losses import Plan
from maskgrad.gradients.attached import AnyGradient

__all__ = ["Alone", "Ranks", "Tally", "found_ranks", "let_ranks_be_found", "there_are_groups"]


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


class Ranks(Protocol):
    """What several ranks do for an accumulator; as written here, one process."""

    size: int = 1
    silenced: bool = False
    """Whether a wrapper's exchange is switched off until :meth:`close`."""
    in_step: bool = False
    """Whether every rank has to take part in every backward pass."""

    def combined(self, own: Tally | None, error: Exception | None) -> Tally:
        """What all have accumulated; raises on all ranks if one has an error, or their plans differ."""
        if error is not None:
            raise error
        assert own is not None
        return own

    def reduce_shards(self) -> None:
        """Let ``fully_shard`` reduce the gradients that it has accumulated."""
        return

    def exchanged(
        self, params: Sequence[Tensor], gradients: Sequence[AnyGradient | None]
    ) -> list[AnyGradient | None]:
        """The sums over the ranks; nothing is written."""
        del params
        return list(gradients)

    def close(self) -> None:
        """Let wrappers exchange again."""
        return


class Alone(Ranks):
    """One process."""


Finder = Callable[[nn.Module | None, Sequence[Tensor], Any], Ranks]
_FINDERS: list[Finder] = []


def let_ranks_be_found(finder: Finder) -> None:
    """Where there is a process group, ``finder(module, params, group)`` gives the ranks."""
    _FINDERS.append(finder)


def found_ranks(module: nn.Module | None, params: Sequence[Tensor], group: Any) -> Ranks:
    """This process alone where there is no process group."""
    if _FINDERS and (there_are_groups() or group is not None):
        return _FINDERS[-1](module, params, group)
    return Alone()


def there_are_groups() -> bool:
    """Whether a process group has been initialised."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
