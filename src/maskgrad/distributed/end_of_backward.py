"""The exchange of gradients when a backward pass ends."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from maskgrad.distributed.agreement import Postponed
from maskgrad.distributed.all_reduction import named_gradients, write_gradients
from maskgrad.distributed.exchange import NamedGradient, exchanged
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.gradients.attached import AnyGradient

__all__ = ["ExchangeAtEnd"]


class ExchangeAtEnd:
    """Averages the gradients of ``params`` after every backward pass, in one exchange.

    ``params`` have the same order on all ranks, and nothing else uses ``group``. A parameter without a gradient on some
    rank does not block the others.
    """

    def __init__(self, params: dict[str, Tensor], group: ProcessGroup) -> None:
        self.params, self.group = params, group
        self._armed = self._queued = False
        for p in params.values():
            p.register_post_accumulate_grad_hook(lambda _: self.backward_begins())

    def arm(self, synchronize: bool) -> None:
        """Set, before a forward pass, whether the gradients of its backward pass are exchanged."""
        self._armed = synchronize
        self._queued = False  # the last backward pass may have failed

    def backward_begins(self) -> None:
        """Called during a backward pass, possibly several times: register a callback for its end."""
        if self._armed and self.params and not self._queued:
            self._queued = True
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        """At the end of backward. DistributedDataParallel finishes before gradients are written, or an error raised."""
        self._queued = False
        averages: list[AnyGradient | None] = []
        with Postponed() as failed:
            averages = self._averages()
        write = partial(self._write, averages, failed.error)
        torch.autograd.Variable._execution_engine.queue_callback(write)

    @torch.no_grad()
    def _averages(self) -> list[AnyGradient | None]:
        own: list[NamedGradient] = []
        with Postponed() as postponed:
            own = named_gradients(list(self.params.values()), [f"parameter {name!r}" for name in self.params])
        return exchanged(own, self.group, "avg", postponed.error)

    @torch.no_grad()
    def _write(self, averages: list[AnyGradient | None], error: Exception | None) -> None:
        if error is not None:
            raise error
        write_gradients(list(self.params.values()), averages)
