"""Several processes, started by ``torchrun``: each takes a part of every batch, and all have the same network."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import maskgrad as mg

__all__ = ["ALONE", "Ranks", "joined"]


@dataclass(frozen=True)
class Ranks:
    """This process among all of them."""

    rank: int
    number: int

    def part(self, index: Tensor) -> Tensor:
        """This process's part of a batch; perhaps empty."""
        return index.tensor_split(self.number)[self.rank]

    def losses(self) -> contextlib.AbstractContextManager[None]:
        """Within, a loss is that of the joint batch: delays are missing here and there, so that parts differ."""
        return mg.distributed.global_losses() if self.number > 1 else contextlib.nullcontext()

    def average_gradients(self, model: nn.Module) -> None:
        """After ``backward()``: all processes get the gradients of the joint batch, sparse ones as sparse ones."""
        if self.number > 1:
            mg.distributed.all_reduce_gradients(model)


ALONE = Ranks(0, 1)


@contextlib.contextmanager
def joined() -> Iterator[Ranks]:
    """Meet the processes that ``torchrun`` has started; without it, this one is alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    torch.distributed.init_process_group("gloo")
    try:
        yield Ranks(torch.distributed.get_rank(), torch.distributed.get_world_size())
    finally:
        torch.distributed.destroy_process_group()
