"""Exchanges that overlap with the backward pass.

Every bucket of parameters is one exchange. It starts when its parameters have their gradients, but always in the same
order on all ranks: a bucket waits for those before it, and the end of backward starts the rest, so that a
parameter without a gradient on some rank does not block the others. Gradients are written when everything has arrived.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from maskgrad.distributed.agreement import Postponed
from maskgrad.distributed.all_reduction import named_gradients, write_gradients
from maskgrad.distributed.exchange import Exchange, Transport
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.gradients.attached import AnyGradient
from maskgrad.sparse import prod

__all__ = ["OverlappedExchange"]


class OverlappedExchange:
    """Averages the gradients of ``params`` after every backward pass.

    ``params`` have the same order on all ranks, and nothing else uses ``group``. With ``overlap`` an exchange starts
    before the backward pass ends; parameters of ``bucket_bytes`` in total share one exchange.
    """

    def __init__(
        self,
        params: dict[str, Tensor],
        group: ProcessGroup,
        transport: Transport,
        overlap: bool,
        bucket_bytes: float,
    ) -> None:
        self.params, self.group, self.transport, self.overlap = params, group, transport, overlap
        self.divide_by_present = False
        self.armed = False
        self._buckets = _bucketed(params, bucket_bytes)
        self._queued = False
        self._place = {name: number for number, bucket in enumerate(self._buckets) for name in bucket}
        self._reset()
        for name, p in params.items():
            p.register_post_accumulate_grad_hook(partial(self._accumulated, name))

    def arm(self, synchronize: bool) -> None:
        """Set, before a forward pass, whether the gradients of its backward pass are exchanged."""
        self.armed = synchronize
        self._reset()  # the last backward pass may have failed

    def backward_begins(self) -> None:
        """Called during a backward pass, possibly several times: register a callback for its end."""
        if self.armed and not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def take_part(self) -> None:
        """Take part in the exchanges of the other ranks without gradients: this rank has no further input."""
        self._reset()
        self._received(away=True)
        self._raise_error()

    def _raise_error(self) -> None:
        error = self._error
        self._reset()
        if error is not None:
            raise error

    def _reset(self) -> None:
        self._queued = False
        self._waiting = [set(bucket) for bucket in self._buckets]
        self._started: list[Exchange] = []
        self._error: Exception | None = None

    def _accumulated(self, name: str, _: Tensor) -> None:
        if not self.armed:
            return
        self.backward_begins()
        number = self._place[name]
        if number < len(self._started):
            raise RuntimeError(
                f"parameter {name!r} got a second gradient in one backward pass, after the first was sent "
                "(reentrant checkpointing does this); use checkpoint(..., use_reentrant=False), or "
                "mg.distributed.prepare(module, overlap=False)"
            )
        self._waiting[number].discard(name)
        while self.overlap and self._more() and not self._waiting[len(self._started)]:
            self._start()

    def _more(self) -> bool:
        return self._error is None and len(self._started) < len(self._buckets)

    def _start(self, away: bool = False) -> None:
        """Announce a bucket, and send the one before, which the other ranks had time to announce."""
        number = len(self._started)
        names = self._buckets[number]
        params = [self.params[name] for name in names]
        called = [f"parameter {name!r}" for name in names]
        found = named_gradients(params, called, present=False)
        with Postponed() as postponed:
            found = named_gradients(params, called, present=not away)
        error = postponed.error
        with torch.no_grad():
            self._started.append(
                Exchange(found, self.group, "avg", self.transport, error, away, self.divide_by_present)
            )
        if number:
            self._send(number - 1)

    def _send(self, number: int) -> None:
        with Postponed() as postponed, torch.no_grad():
            self._started[number].send()
        self._error = postponed.error  # an error on all ranks, which start no further exchanges

    def _finish(self) -> None:
        """At the end of backward, exchange the rest. DistributedDataParallel finishes before gradients are written."""
        found = self._received()
        torch.autograd.Variable._execution_engine.queue_callback(partial(self._write, found))

    def _received(self, away: bool = False) -> list[list[AnyGradient | None]]:
        """The results of all buckets, once all have arrived."""
        while self._more():
            self._start(away)
        if self._started and self._error is None:
            self._send(len(self._started) - 1)
        if self._error is not None:
            return []
        with torch.no_grad():
            return [started.finish() for started in self._started]

    def _write(self, found: list[list[AnyGradient | None]]) -> None:
        self._raise_error()
        with torch.no_grad():
            for names, gradients in zip(self._buckets, found, strict=True):
                write_gradients([self.params[name] for name in names], gradients)


def _bucketed(params: dict[str, Tensor], most: float) -> list[list[str]]:
    """Group parameters, roughly in the order of the backward pass; small neighbours share a bucket."""
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
