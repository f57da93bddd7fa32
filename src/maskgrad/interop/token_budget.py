"""Batches of equal work from sequences of different lengths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

if TYPE_CHECKING:
    import numpy as np

__all__ = ["TokenBudgetSampler"]

FUNCTION = "mg.interop.TokenBudgetSampler"


class TokenBudgetSampler(Sampler[list[int]]):
    """Batches of sequences with a maximum number of tokens: a ``batch_sampler`` for ``torch.utils.data.DataLoader``.

    Sequences of similar length are batched together to reduce padding. Every rank gets the same
    number of batches, and the batches of one step have about the same number of tokens. The same arguments and epoch
    give the same batches, on every machine.

    Args:
        lengths: the length of each sequence of the data set, in its order: integers (N,), 0 allowed.
        budget: maximum number of tokens in a batch; an empty sequence counts as one.
        shuffle: another order in each epoch (see :meth:`set_epoch`). False: the order of the data set, sorted by length
            within each bucket.
        drop_last: drop the last batch if it is not full, and batches that do not suffice for all ranks. False: the
            first batches are repeated for the remaining ranks.
        seed: random seed; the same on all ranks.
        bucket: number of consecutive sequences among which similar lengths are grouped. 1: none; None: all, so that
            only the order of equal lengths is random.
        num_replicas: number of ranks. None: that of ``torch.distributed``, 1 if that is not initialized.
        rank: index of this rank. None: that of ``torch.distributed``.

    Yields:
        Lists of indices into the data set.

    Raises:
        TypeError: ``lengths`` are not integers, or ``budget`` or ``bucket`` is not an integer.
        ValueError: a length is negative or above ``budget`` (the message names the sequence), or an argument is out of
            range.

    Dense equivalent: ``torch.utils.data.BatchSampler``, whose batches have equal numbers of sequences.

    Example:
        >>> sampler = mg.interop.TokenBudgetSampler([3, 1, 4, 1, 5], budget=6)
        >>> list(sampler), len(sampler)
        ([[1, 3, 0], [2], [4]], 3)

    Source: https://docs.pytorch.org/docs/stable/data.html#loading-batched-and-non-batched-data
    """

    def __init__(
        self,
        lengths: Tensor | Sequence[int] | np.ndarray[Any, Any],
        budget: int,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        bucket: int | None = 4096,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        for name, number in (("budget", budget), ("bucket", bucket)):
            if name == "bucket" and number is None:
                continue
            if not isinstance(number, int) or isinstance(number, bool):
                raise TypeError(f"{FUNCTION}: {name} must be an integer, found {number!r}; use int(...)")
            if number < 1:
                raise ValueError(f"{FUNCTION}: {name} must be 1 or more, found {number}")
        self._lengths = _checked(lengths, budget)
        self.budget, self.bucket = budget, bucket
        self.shuffle, self.drop_last, self.seed = shuffle, drop_last, seed
        self.num_replicas, self.rank = _place(num_replicas, rank)
        self.epoch = 0
        self._made: tuple[int, list[list[int]]] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order; call it on all ranks."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        return iter(list(self._batches()))

    def __len__(self) -> int:
        """Number of batches of this epoch on each rank; it may differ between epochs."""
        return len(self._batches())

    def _batches(self) -> list[list[int]]:
        """The batches of this rank."""
        if self._made is not None and self._made[0] == self.epoch:
            return self._made[1]
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order, ends = self._filled(generator)
        starts = [0, *ends[:-1]] if ends else []
        batches = list(zip(starts, ends, strict=True))
        if self.num_replicas > 1 and self.shuffle:  # those of one step have about the same number of tokens
            total = torch.nn.functional.pad(self._lengths[order].cumsum(0), (1, 0)).tolist()
            batches.sort(key=lambda batch: total[batch[1]] - total[batch[0]])
        over = len(batches) % self.num_replicas
        if over and self.drop_last:
            batches = batches[: len(batches) - over]
        elif over:
            batches += [batches[i % len(batches)] for i in range(self.num_replicas - over)]
        steps = len(batches) // self.num_replicas
        turns = torch.randperm(steps, generator=generator).tolist() if self.shuffle else range(steps)
        mine = [batches[turn * self.num_replicas + self.rank] for turn in turns]
        self._made = self.epoch, [order[start:end].tolist() for start, end in mine]
        return self._made[1]

    def _filled(self, generator: torch.Generator) -> tuple[Tensor, list[int]]:
        """The sequences in order of the batches, and the end of each batch."""
        number = len(self._lengths)
        order = torch.randperm(number, generator=generator) if self.shuffle else torch.arange(number)
        # Sorted within each bucket, alternately up and down, so that lengths are similar where buckets meet.
        parts = [
            part[self._lengths[part].argsort(stable=True, descending=bool(i % 2))]
            for i, part in enumerate(order.split(self.bucket or max(number, 1)))
        ]
        order = torch.cat(parts)
        total = self._lengths[order].clamp(min=1).cumsum(0)
        ends: list[int] = []
        start, spent = 0, 0
        while start < number:
            start = int(torch.searchsorted(total, spent + self.budget, right=True))
            ends.append(start)
            spent = int(total[start - 1])
        begin = int(total[ends[-2] - 1]) if len(ends) > 1 else 0
        if ends and self.drop_last and spent - begin < self.budget:
            ends.pop()
        return order, ends


def _checked(lengths: Any, budget: int) -> Tensor:
    wrong = ""
    try:
        found = torch.as_tensor(lengths).cpu()
        is_integer = not (
            found.dtype.is_floating_point or found.dtype.is_complex or found.dtype == torch.bool
        )
        if found.ndim != 1 or not (is_integer or not found.numel()):
            wrong = f"{found.dtype} of shape {tuple(found.shape)}"
    except (TypeError, ValueError, RuntimeError) as error:
        wrong = f"{type(lengths).__name__} ({error})"
    if wrong:
        raise TypeError(
            f"{FUNCTION}: lengths must be integers (N,), found {wrong}; use [len(sequence) for sequence in data]"
        )
    found = found.long()
    if bool((found < 0).any()):
        at = int((found < 0).nonzero()[0])
        raise ValueError(f"{FUNCTION}: lengths must be 0 or more, found {int(found[at])} at {at}")
    long = found > budget
    if bool(long.any()):
        at = int(long.nonzero()[0])
        raise ValueError(
            f"{FUNCTION}: no batch of budget {budget} can contain sequence {at} of length {int(found[at])} (one of "
            f"{int(long.sum())}); raise budget to {int(found.max())}, cut such sequences, or remove them from "
            "the data set"
        )
    return found


def _place(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    from torch import distributed

    together = distributed.is_available() and distributed.is_initialized()
    number = num_replicas if num_replicas is not None else distributed.get_world_size() if together else 1
    place = rank if rank is not None else distributed.get_rank() if together and num_replicas is None else 0
    if rank is None and num_replicas is not None and num_replicas > 1:
        raise ValueError(f"{FUNCTION}: rank must be given with num_replicas={num_replicas}")
    if number < 1 or not 0 <= place < number:
        raise ValueError(
            f"{FUNCTION}: rank must lie from 0 to num_replicas - 1, found rank {place} of {number} replicas"
        )
    return number, place
