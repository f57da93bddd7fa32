"""Whether a sample's loss had nothing and sends nothing back: zero times a spoiled activation would be NaN."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch

__all__ = ["Arrivals", "anything_left"]


class Arrivals:
    """Listens to the outputs of samples during the backward pass.

    Args:
        batch: number of samples.
        device: of the answer.

    Attributes:
        found: Boolean (batch,): of which samples the gradient by the outputs is not zero (NaN is not).
    """

    def __init__(self, batch: int, device: torch.device) -> None:
        self.found = torch.zeros(batch, dtype=torch.bool, device=device)

    def listen(self, outputs: Iterable[Any], dim: int | None = 0) -> None:
        """To outputs of all samples along ``dim``, of one sample under ``vmap``, or (None) of the only one."""
        for x in outputs:
            if isinstance(x, Tensor):
                batched = functorch.is_batchedtensor(x)
                self._to(*(functorch.get_unwrapped(x), functorch.maybe_get_bdim(x)) if batched else (x, dim))
            elif not isinstance(x, (int, float, str, type(None))):
                self.found = torch.ones_like(self.found)  # an object may hold tensors: anything may come back

    def _to(self, outputs: Tensor, dim: int | None) -> None:
        if outputs.requires_grad:
            outputs.register_hook(functools.partial(self._note, dim))

    def _note(self, dim: int | None, cotangent: Tensor) -> None:
        some = cotangent.detach() != 0
        of_each = some.any() if dim is None else some.movedim(dim, 0).unsqueeze(-1).flatten(1).any(1)
        self.found = self.found | of_each.to(self.found.device)


def anything_left(noted: Sequence[Tensor]) -> Tensor:
    """Whether one of the numbers that were noted had anything, also those of transformations that the loss made."""
    level = functorch.maybe_current_level() or 0
    return functools.reduce(operator.or_, [_at(level, mask).any().to(noted[0].device) for mask in noted])


def _at(level: int, mask: Tensor) -> Tensor:
    """Without the wrappers of transformations that have ended."""
    while functorch.is_functorch_wrapped_tensor(mask) and functorch.maybe_get_level(mask) > level:
        mask = functorch.get_unwrapped(mask)
    return mask
