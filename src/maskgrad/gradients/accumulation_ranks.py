"""The ranks that accumulate gradients together: this process alone, or those of a process group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.gradients.attached import AnyGradient

__all__ = ["Alone", "find_ranks_with", "found_ranks", "there_are_groups"]


class Alone:
    """A single process; subclasses represent several ranks."""

    rank: int = 0
    size: int = 1
    silenced: bool = False
    """Whether a wrapper's exchange is switched off until :meth:`close`."""
    sharded: bool = False
    """Whether ``fully_shard`` holds sums until the end; every rank then takes part in each backward pass."""

    def collected(self, own: Any, error: Exception | None, trained: Mapping[str, Tensor]) -> list[Any]:  # noqa: ARG002
        """Collect the data of each rank, by rank; raises on all ranks if one has an error, or trains others."""
        return self.gathered(own, error)

    def gathered(self, own: Any, error: Exception | None = None) -> list[Any]:
        """Gather the tensors of all ranks, by rank, whose first sizes may differ; raises as :meth:`collected`."""
        if error is not None:
            raise error
        return [own]

    def reduce_shards(self) -> None:
        """Let ``fully_shard`` reduce the gradients that it has accumulated."""

    def exchanged(
        self,
        params: Sequence[Tensor],  # noqa: ARG002
        gradients: Sequence[AnyGradient | None],
    ) -> list[AnyGradient | None]:
        """Sums over the ranks; out of place."""
        return list(gradients)

    def close(self) -> None:
        """Let wrappers exchange again."""


_FINDERS: list[Callable[[nn.Module | None, Sequence[Tensor], Any], Alone]] = []


def find_ranks_with(finder: Callable[[nn.Module | None, Sequence[Tensor], Any], Alone]) -> None:
    """Register ``finder(module, params, group)``, which returns the ranks of a process group."""
    _FINDERS.append(finder)


def found_ranks(module: nn.Module | None, params: Sequence[Tensor], group: Any) -> Alone:
    """Return the ranks; this process only if there is no process group."""
    if there_are_groups() or group is not None:
        return _FINDERS[-1](module, params, group)
    return Alone()


def there_are_groups() -> bool:
    """Return whether a process group has been initialised."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
