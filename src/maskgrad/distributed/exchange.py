"""One exchange: all ranks bring gradients of any kind, and all leave with their sum, of one kind.

Three steps, each of which starts collectives without waiting for them: every rank tells what it brings
(``__init__``), contributions are sent (:meth:`Exchange.send`), results are put together (:meth:`Exchange.finish`).
What a rank does in a step follows from what all of them told, so that all start the same collectives in the same
order. A rank that refuses its gradients says so in the first message, and all ranks raise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch

from maskgrad.distributed.agreement import raise_everywhere
from maskgrad.distributed.local_gradients import Facts, local_gradient, nothing
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.distributed.reduction_plan import ReductionPlan, reduction_plan
from maskgrad.distributed.transfers import DenseTransfer, Item, SparseTransfer
from maskgrad.gradients.attached import AnyGradient

__all__ = ["Exchange", "Op", "Slot", "Way"]

Op = Literal["sum", "avg", "mean"]
Way = Literal["auto", "dense", "sparse"]

_HEAD = 4
_FIRST = 64
"""Slots of which the first message tells, which must have the same length before anything is agreed."""


class Slot(NamedTuple):
    """One of the places of an exchange."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    gradient: AnyGradient | None


class Exchange:
    """The gradients of several slots, exchanged together.

    Args:
        slots: in the same order on all ranks.
        group: the ranks.
        op: what is made of the contributions to an entry: ``"sum"``; ``"avg"``, the sum divided by the number of
            ranks; ``"mean"``, divided by the number of ranks on which the entry is specified.
        way: how sparse gradients travel.
        refusal: why this rank cannot go on.
        away: this rank has run out of input, and takes part for the others' sake.
        divide_by_present: whether ``"avg"`` leaves out ranks that are away.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        group: ProcessGroup,
        op: Op = "sum",
        way: Way = "auto",
        refusal: Exception | None = None,
        away: bool = False,
        divide_by_present: bool = False,
    ) -> None:
        self.slots, self.group, self.op, self.way = slots, group, op, way
        self._divide_by_present = divide_by_present
        self._plan = f"{group.what} op={op!r} exchange={way!r} of {len(slots)} tensors: " + "; ".join(
            f"{s.name} {tuple(s.shape)} {s.dtype} {s.device.type}" for s in slots
        )
        self._refusal = refusal
        self.parts = [nothing() for _ in slots]
        if refusal is None:
            try:
                self.parts = [local_gradient(s.gradient, s.shape, s.name) for s in slots]
            except Exception as error:  # raised on all ranks when they have heard of it
                self._refusal = error
        self._works: list[Any] = []
        self._sent: list[DenseTransfer | SparseTransfer] = []
        numbers = [n for part in self.parts for n in part.facts]
        first = numbers[: _FIRST * len(Facts._fields)]
        digest = hashlib.blake2b(self._plan.encode(), digest_size=7).digest()
        head = [int(self._refusal is not None), int.from_bytes(digest, "big"), int(away), len(slots)]
        padding = [0] * (_FIRST * len(Facts._fields) - len(first))
        message = torch.tensor(head + first + padding, dtype=torch.int64, device=group.device)
        self._rest = numbers[len(first) :]
        self._told = group.gather(message, self._works)

    def send(self) -> None:
        """Learn what the others bring, and send what this rank brings.

        Raises:
            Exception: a rank refused its gradients, or the ranks do not mean the same exchange: on all of them.
            RuntimeError: a rank has ended, or does not answer.
        """
        self.group.wait(self._works)
        told = self._told.tolist()
        if any(row[0] for row in told) or any(row[1] != told[0][1] for row in told):
            raise_everywhere(self.group, self._plan, self._refusal)
        numbers = [row[_HEAD:] for row in told]
        if self._rest:
            rest = self.group.gather(
                torch.tensor(self._rest, dtype=torch.int64, device=self.group.device), self._works
            )
            self.group.wait(self._works)
            numbers = [row + more for row, more in zip(numbers, rest.tolist(), strict=True)]
        width = len(Facts._fields)
        present = (
            self.group.size - sum(row[2] for row in told) if self._divide_by_present else self.group.size
        )
        self.reduction_plans: list[ReductionPlan | None] = [
            reduction_plan(
                [Facts(*row[i * width : (i + 1) * width]) for row in numbers],
                slot.shape,
                self.op,
                self.way,
                present,
            )
            for i, slot in enumerate(self.slots)
        ]
        self._send_by_device()

    def _send_by_device(self) -> None:
        devices = {self.group.transport(s.device) for s in self.slots}
        for device in sorted(devices, key=str):
            dense: list[Item] = []
            sparse: list[Item] = []
            for slot, part, plan in zip(self.slots, self.parts, self.reduction_plans, strict=True):
                if plan is None or self.group.transport(slot.device) != device:
                    continue
                (sparse if plan.listed else dense).append((slot, part, plan))
            if dense:
                self._sent.append(DenseTransfer(self.group, device, dense))
            if sparse:
                self._sent.append(SparseTransfer(self.group, device, sparse))

    def finish(self) -> list[AnyGradient | None]:
        """What each slot gets, of one kind and equal bit for bit on all ranks; None where no rank had anything.

        Raises:
            RuntimeError: a rank has ended, or does not answer.
        """
        found: dict[int, AnyGradient] = {}
        for transfer in self._sent:
            found.update(transfer.finish())
        return [found.get(id(slot)) for slot in self.slots]
