"""What several ranks do for an accumulator of gradients: agree on what they accumulated, and add it up."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.distributed.agreement import agree, raise_everywhere
from maskgrad.distributed.exchange import Exchange, Slot
from maskgrad.distributed.gradients import is_distributed_tensor
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.distributed.sharding import is_sharded
from maskgrad.distributed.silence import Wrappers
from maskgrad.gradients.accumulated_losses import Plan
from maskgrad.gradients.accumulation_ranks import Tally
from maskgrad.gradients.attached import AnyGradient

__all__ = ["AccumulatingRanks", "ranks_of"]

_FIRST = 4
"""Losses of which the first message tells."""


def ranks_of(module: nn.Module | None, params: Sequence[Tensor], group: Any) -> AccumulatingRanks:
    """The ranks that accumulate together; wrappers in ``module`` do not exchange from now on."""
    return AccumulatingRanks(module, params, group)


class AccumulatingRanks:
    """The ranks of a group, seen from one of them."""

    def __init__(self, module: nn.Module | None, params: Sequence[Tensor], group: Any) -> None:
        self._wrappers = Wrappers(module, params)
        group = self._wrappers.group() if group is None else group
        self._ranks = ProcessGroup(group, "GradientAccumulator")
        self.size = self._ranks.size
        self._averaged = _averaged_tables(module, params)
        self.in_step = bool(self._wrappers.sharded) or any(is_sharded(p) for p in params)
        self.silenced = bool(self._wrappers)
        self._wrappers.silence()

    def agree(self, own: Tally | None, refusal: Exception | None) -> Tally:
        """Add up what all have accumulated.

        Raises:
            Exception: a rank refuses, or they accumulate different things: on all of them.
        """
        if self.size == 1:
            if refusal is not None:
                raise refusal
            assert own is not None
            return own
        speaks = own if own is not None and own.plan is not None else None
        text = "" if speaks is None else _described(speaks)
        numbers = [] if speaks is None else _numbers(speaks)
        digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
        head = [int(refusal is not None), digest, int(speaks is None), len(numbers)]
        first = numbers[: 3 * _FIRST]
        told = self._gathered(head + first + [0] * (3 * _FIRST - len(first)))
        speaking = [row for row in told if not row[2]]
        if any(row[0] for row in told):
            raise_everywhere(self._ranks, text, refusal)
        if not speaking:
            return Tally(None, (), (), ())
        if len(speaking) < len(told) or any(row[1] != speaking[0][1] for row in speaking):
            # A rank that had no data means what the others mean.
            texts = self._ranks.gather_texts(text)
            text = text or next(one for one in texts if one)
            agree(self._ranks, text)
        rows = [row[4:] for row in speaking]
        length = speaking[0][3]
        if length > 3 * _FIRST:
            rest = numbers[3 * _FIRST :] or [0] * (length - 3 * _FIRST)
            more = self._gathered(rest)
            rows = [row[4:] + extra for row, extra in zip(told, more, strict=True) if not row[2]]
        return _together(text, [row[:length] for row in rows])

    def reduce_shards(self) -> None:
        """Let ``fully_shard`` exchange."""
        if self._wrappers.sharded:
            self._wrappers.reduce_shards()

    def exchanged(
        self, params: Sequence[Tensor], gradients: Sequence[AnyGradient | None]
    ) -> list[AnyGradient | None]:
        """The sums over the ranks; nothing is written."""
        found = list(gradients)
        places = [n for n, p in enumerate(params) if not (is_distributed_tensor(p) or is_sharded(p))]
        slots = [
            Slot(f"gradient of parameter {n}", p.shape, p.dtype, p.device, gradients[n])
            for n in places
            for p in (params[n],)
        ]
        started = Exchange(slots, self._ranks, "sum")
        started.send()
        for place, gradient in zip(places, started.finish(), strict=True):
            found[place] = gradient
        for place, param in enumerate(params):
            gradient = found[place]
            if id(param) in self._averaged and isinstance(gradient, Tensor):
                found[place] = gradient * self.size
        return found

    def close(self) -> None:
        """Let wrappers exchange again."""
        self._wrappers.close()

    def _gathered(self, numbers: list[int]) -> list[list[int]]:
        works: list[Any] = []
        told = self._ranks.gather(torch.tensor(numbers, dtype=torch.int64, device=self._ranks.device), works)
        self._ranks.wait(works)
        return told.tolist()


def _described(own: Tally) -> str:
    """The plan as a text, from which :func:`_plan` reads it again."""
    assert own.plan is not None
    names = "one loss" if own.plan.names is None else "losses " + repr(list(own.plan.names))
    weights = ", ".join(map(repr, own.plan.weights))
    return f"mean={own.mean!r}; scale={own.scale!r}; {names.replace(';', chr(92) + 'x3b')}; weights {weights}"


def _plan(text: str) -> Plan:
    import ast

    _, _, names, weights = text.split("; ")
    numbers = tuple(float(one) for one in weights.removeprefix("weights ").split(", "))
    return Plan(
        None if names == "one loss" else tuple(ast.literal_eval(names.removeprefix("losses "))), numbers
    )


def _numbers(own: Tally) -> list[int]:
    """Count, total and exponent of each loss, as integers that hold all of their bits."""
    return [
        number
        for total, count, exponent in zip(own.totals, own.counts, own.exponents, strict=True)
        for number in (count, struct.unpack("<q", struct.pack("<d", total))[0], exponent)
    ]


def _together(text: str, rows: list[list[int]]) -> Tally:
    counts = tuple(map(sum, zip(*(row[::3] for row in rows), strict=True)))
    bits = [[struct.unpack("<d", struct.pack("<q", one))[0] for one in row[1::3]] for row in rows]
    totals = tuple(map(sum, zip(*bits, strict=True)))
    exponents = tuple(map(max, zip(*(row[2::3] for row in rows), strict=True)))
    return Tally(_plan(text), totals, counts, exponents)


def _averaged_tables(module: nn.Module | None, params: Sequence[Tensor]) -> set[int]:
    """Rows of sharded tables, exchanged in each backward pass, whose gradients are averages over the ranks."""
    sharded = {id(p) for p in params if is_sharded(p)}
    found: set[int] = set()
    for owner in () if module is None else module.modules():
        own = {id(p) for p in owner.parameters(recurse=False)} & sharded
        sharded -= own
        if getattr(owner, "gradients", None) == "average":
            found |= own
    if sharded:
        raise ValueError(
            "GradientAccumulator: parameters are rows of sharded tables, and whether their gradients are averages only "
            "the tables know; give the module instead of its parameters"
        )
    return found
