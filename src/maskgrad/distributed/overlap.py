"""Exchanges that run while backward goes on.

Every bucket of parameters is one exchange. It starts when its parameters have their gradients, but always in the same
order on all ranks: a bucket waits for those before it, and the end of backward starts what is left, so that a
parameter without a gradient on some rank holds nobody up for good. Gradients are written when everything has arrived.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from maskgrad.distributed.exchange import Exchange, Way
from maskgrad.distributed.gradients import slots_of, write_gradients
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.sparse import prod

__all__ = ["OverlappedExchange"]


class OverlappedExchange:
    """Averages the gradients of some parameters whenever a backward pass has given them.

    Args:
        params: by name, in the same order on all ranks.
        group: a group of ranks that nothing else talks in.
        way: how sparse gradients travel.
        overlap: start before the backward pass ends.
        bucket_bytes: how large parameters may be together that travel in one exchange.
    """

    def __init__(
        self, params: dict[str, Tensor], group: ProcessGroup, way: Way, overlap: bool, bucket_bytes: float
    ) -> None:
        self.params, self.group, self.way, self.overlap = params, group, way, overlap
        self.divide_by_present = False
        self.armed = False
        self._buckets = _bucketed(params, bucket_bytes)
        self._queued = False
        self._place = {name: number for number, bucket in enumerate(self._buckets) for name in bucket}
        self._reset()
        for name, p in params.items():
            p.register_post_accumulate_grad_hook(partial(self._accumulated, name))

    def arm(self, synchronize: bool) -> None:
        """Before a forward pass: whether the gradients of its backward pass are to be exchanged."""
        self.armed = synchronize
        self._reset()  # an error may have ended the last backward pass

    def backward_begins(self) -> None:
        """Called during a backward pass, perhaps several times: see to it that its end is noticed."""
        if self.armed and not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def take_part(self) -> None:
        """Go through the same exchanges as the other ranks, with nothing: this rank has no input any more."""
        for number in range(len(self._buckets)):
            self._start(number, away=True)
        self._put_together(write=False)

    def _reset(self) -> None:
        self._queued = False
        self._waiting = [set(bucket) for bucket in self._buckets]
        self._started: list[Exchange] = []

    def _accumulated(self, name: str, _: Tensor) -> None:
        if not self.armed:
            return
        self.backward_begins()
        number = self._place[name]
        if number < len(self._started):
            raise RuntimeError(
                f"parameter {name!r} got a second gradient in one backward pass, when the first had been sent "
                "(reentrant checkpointing does this); use checkpoint(..., use_reentrant=False), or "
                "mg.distributed.prepare(module, overlap=False)"
            )
        self._waiting[number].discard(name)
        while (
            self.overlap and len(self._started) < len(self._buckets) and not self._waiting[len(self._started)]
        ):
            self._start(len(self._started))

    def _start(self, number: int, away: bool = False) -> None:
        """Tell what the bucket brings; and send the bucket before, whose owners have had time to tell."""
        names = self._buckets[number]
        params = [self.params[name] for name in names]
        refusal, slots = None, slots_of(params, [repr(name) for name in names], present=False)
        if not away:
            try:
                slots = slots_of(params, [f"parameter {name!r}" for name in names])
            except ValueError as error:  # the other ranks are told
                refusal = error
        slots = [slot._replace(name=f"gradient of {name!r}") for slot, name in zip(slots, names, strict=True)]
        with torch.no_grad():
            self._started.append(
                Exchange(slots, self.group, "avg", self.way, refusal, away, self.divide_by_present)
            )
            if number:
                self._started[number - 1].send()

    def _finish(self) -> None:
        while len(self._started) < len(self._buckets):
            self._start(len(self._started))
        self._put_together(write=True)

    def _put_together(self, write: bool) -> None:
        with torch.no_grad():
            if self._started:
                self._started[-1].send()
            found = [started.finish() for started in self._started]
            for names, gradients in zip(self._buckets, found, strict=True):
                if write:
                    write_gradients([self.params[name] for name in names], gradients)
        self._reset()


def _bucketed(params: dict[str, Tensor], most: float) -> list[list[str]]:
    """Backward meets the parameters in about the opposite order; small neighbours travel together."""
    buckets: list[list[str]] = []
    filled = 0
    for name, param in reversed(params.items()):
        size = prod(param.shape) * param.element_size()
        if not buckets or filled + size > most or len(buckets[-1]) >= 64:
            buckets.append([])
            filled = 0
        buckets[-1].append(name)
        filled += size
    return buckets
