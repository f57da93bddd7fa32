"""Whether a loss or a gradient depends on the contents of a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from maskgrad.doctor.batches import fields, ragged, tensor_of
from maskgrad.doctor.modes import Guarded
from maskgrad.doctor.operations import Operated, key_of, tensors_in
from maskgrad.doctor.runner import Outcome

__all__ = ["Dependence"]


class Dependence(Guarded):
    """Follows the contents of a batch through the operations of a run.

    Contents that leave PyTorch, become a Python number, or have several memories cannot be followed: they may matter.
    """

    def __init__(self, batch: Any) -> None:
        super().__init__()
        inside = [*fields(batch).values(), *ragged(batch).values()]
        held = [held.data if isinstance(held, PackedSequence) else tensor_of(held) for held in inside]
        self._reached = {key_of(part.values() if part.layout is torch.jagged else part) for part in held}
        self._is_lost = not held

    def leaves_torch(self, tensor: Tensor) -> bool:
        """The memory of a tensor leaves PyTorch."""
        self._is_lost |= key_of(tensor) in self._reached
        return super().leaves_torch(tensor)

    def run(self, call: Operated) -> Any:
        """The operation; what it makes depends on the batch if an input does."""
        keys = {key_of(tensor) for tensor in call.inputs}
        result = call()
        made = {key_of(tensor) for tensor in tensors_in(result)}
        if keys & self._reached:
            made |= {key_of(tensor) for tensor in call.written}
            self._reached |= made
            self._is_lost |= not made
        else:
            self._reached -= made  # memory that was used before
        self._is_lost |= None in keys
        return result

    def reaches(self, outcome: Outcome) -> bool:
        """Whether the loss or a gradient depends on the batch; also where that is unknown."""
        return self._is_lost or any(key_of(tensor) in self._reached for tensor in outcome.tensors().values())
