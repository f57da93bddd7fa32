"""The ranks that accumulate gradients together: this process alone, or those of a process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.gradients.attached import AnyGradient

__all__ = ["Alone", "find_ranks_with", "found_ranks", "there_are_groups"]


class Alone:
    """One process; subclasses are several ranks."""

    rank: int = 0
    size: int = 1
    silenced: bool = False
    """Whether a wrapper's exchange is switched off until :meth:`close`."""
    in_step: bool = False
    """Whether every rank has to take part in every backward pass."""
    sharded: bool = False
    """Whether sums of gradients are inside of ``fully_shard`` until the end."""

    def collected(self, own: Any, error: Exception | None) -> list[Any]:
        """Collect the data of each rank (plain numbers and texts), by rank; raises on all ranks if one has an error."""
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
        """Sums over the ranks; nothing is written."""
        return list(gradients)

    def gathered(self, tensors: Sequence[Tensor], error: Exception | None = None) -> list[list[Tensor]]:
        """Tensors of each rank, by rank, which may differ in their first size; raises as :meth:`collected`."""
        if error is not None:
            raise error
        return [list(tensors)]

    def close(self) -> None:
        """Let wrappers exchange again."""


_FINDERS: list[Callable[[nn.Module | None, Sequence[Tensor], Any], Alone]] = []


def find_ranks_with(finder: Callable[[nn.Module | None, Sequence[Tensor], Any], Alone]) -> None:
    """Let ``finder(module, params, group)`` give the ranks of a process group."""
    _FINDERS.append(finder)


def found_ranks(module: nn.Module | None, params: Sequence[Tensor], group: Any) -> Alone:
    """This process alone if there is no process group."""
    if there_are_groups() or group is not None:
        return _FINDERS[-1](module, params, group)
    return Alone()


def there_are_groups() -> bool:
    """Whether a process group has been initialised."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())
