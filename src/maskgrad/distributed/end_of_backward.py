"""The exchange of gradients when a backward pass ends."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from maskgrad.distributed.agreement import Postponed
from maskgrad.distributed.all_reduction import named_gradients, write_gradients
from maskgrad.distributed.exchange import Exchange, Transport
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.gradients.attached import AnyGradient

__all__ = ["ExchangeAtEnd"]


class ExchangeAtEnd:
    """Averages the gradients of ``params`` after every backward pass, in one exchange.

    ``params`` have the same order on all ranks, and nothing else uses ``group``. A parameter without a gradient on some
    rank does not block the others.
    """

    def __init__(self, params: dict[str, Tensor], group: ProcessGroup, transport: Transport) -> None:
        self.params, self.group, self.transport = params, group, transport
        self.divide_by_present = False
        self.armed = self._queued = False
        for p in params.values():
            p.register_post_accumulate_grad_hook(lambda _: self.backward_begins())

    def arm(self, synchronize: bool) -> None:
        """Set, before a forward pass, whether the gradients of its backward pass are exchanged."""
        self.armed = synchronize
        self._queued = False  # the last backward pass may have failed

    def backward_begins(self) -> None:
        """Called during a backward pass, possibly several times: register a callback for its end."""
        if self.armed and not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def take_part(self) -> None:
        """Take part in the exchange of the other ranks without gradients: this rank has no further input."""
        self._averages(away=True)

    def _finish(self) -> None:
        """At the end of backward. DistributedDataParallel finishes before gradients are written, or an error raised."""
        self._queued = False
        with Postponed() as postponed:
            found = self._averages()
        write = partial(self._write, [] if postponed.error else found, postponed.error)
        torch.autograd.Variable._execution_engine.queue_callback(write)

    def _averages(self, away: bool = False) -> list[AnyGradient | None]:
        if not self.params:
            return []
        params, names = list(self.params.values()), [f"parameter {name!r}" for name in self.params]
        found = named_gradients(params, names, present=False)
        with Postponed() as postponed:
            found = named_gradients(params, names, present=not away)
        with torch.no_grad():
            exchange = Exchange(
                found, self.group, "avg", self.transport, postponed.error, away, self.divide_by_present
            )
            exchange.send()
            return exchange.finish()

    @torch.no_grad()
    def _write(self, found: list[AnyGradient | None], error: Exception | None) -> None:
        if error is not None:
            raise error
        write_gradients(list(self.params.values()), found)
