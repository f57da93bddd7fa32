"""A module on several ranks: dense gradients through DistributedDataParallel, others through our exchange."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from maskgrad.distributed.end_of_backward import ExchangeAtEnd
from maskgrad.distributed.exchange import Transport
from maskgrad.distributed.partition import ParameterPartition, check_gradient_is_dense
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.data_parallel import REPLICAS, memory_of

__all__ = ["DataParallel"]


class DataParallel(nn.Module, Joinable):
    """Result of :func:`maskgrad.distributed.prepare`; the attribute ``module`` is its argument."""

    def __init__(
        self,
        module: nn.Module,
        ranks: ProcessGroup,
        parts: ParameterPartition,
        exchange: Transport,
        init_sync: bool,
        timeout: datetime.timedelta | None,
        ddp_options: dict[str, Any],
    ) -> None:
        nn.Module.__init__(self)
        Joinable.__init__(self)
        self.module = module
        self._group, self._partition = ranks.group, parts
        self.require_backward_grad_sync = True
        self._announced: list[Any] = []
        own = ProcessGroup(_new_group(ranks, timeout), "the exchange of gradients")
        # In a tuple: neither a second copy in state_dict() nor one more level of modules.
        self._dense: tuple[DistributedDataParallel, ...] = ()
        if parts.dense:
            flat = _PlainOutputs(module)
            others = {id(p) for p in (*parts.exchanged.values(), *parts.local.values())}
            named = module.named_parameters(remove_duplicate=False)
            ignored = [f"module.{name}" for name, p in named if id(p) in others]
            flat._ddp_params_and_buffers_to_ignore = ignored  # type: ignore[assignment]
            self._dense = (
                DistributedDataParallel(flat, process_group=ranks.group, init_sync=init_sync, **ddp_options),
            )
            for name, param in parts.dense.items():
                param.register_hook(lambda gradient, name=name: check_gradient_is_dense(name, gradient))
        if init_sync:
            self._send_from(own, 0)
        REPLICAS.add(self)
        self._exchange = ExchangeAtEnd(parts.exchanged, own, exchange)

    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]  # what is inside is compiled
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        synchronize = torch.is_grad_enabled() and self.require_backward_grad_sync
        self._exchange.arm(synchronize)
        if self._join_config.enable:
            self._announce(synchronize)
        if not self._dense:
            Join.notify_join_context(self)
            output = self.module(*args, **kwargs)
        else:
            output = pytree.tree_unflatten(*self._dense[0](*args, **kwargs))
        if synchronize:
            for tensor in _tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(lambda _: self._exchange.backward_begins())
        return output

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on this rank; the first backward pass of a forward pass outside exchanges them all."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            with self._dense[0].no_sync() if self._dense else contextlib.nullcontext():
                yield
        finally:
            self.require_backward_grad_sync = before

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Train on uneven inputs: a rank without further input takes part without gradients.

        Args:
            divide_by_initial_world_size: divide by the number of all ranks; False: of those that still have input.
            enable: False does nothing.
            throw_on_early_termination: raise on all ranks as soon as one has no further input.
        """
        return Join(
            [*self._dense, self],
            enable,
            throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """The hook of a rank without further input."""
        self._exchange.divide_by_present = not kwargs.get("divide_by_initial_world_size", True)
        return _RunOut(self)

    @property
    def join_device(self) -> torch.device:
        """Device on which ranks are counted."""
        return self._exchange.group.device

    @property
    def join_process_group(self) -> Any:
        """The ranks."""
        return self._group if self._group is not None else torch.distributed.group.WORLD

    def _announce(self, synchronize: bool) -> bool:
        """Tell ranks without further input, which do not run this forward pass, whether an exchange follows."""
        self._exchange.group.wait(self._announced)
        self._follows = torch.tensor([int(synchronize)], device=self._exchange.group.device)
        self._exchange.group.largest(self._follows, self._announced)
        return synchronize

    def _send_from(self, group: ProcessGroup, rank: int) -> None:
        """Broadcast the parameters of one rank, and its buffers if DistributedDataParallel is not used."""
        tensors: list[Tensor] = list(self._partition.exchanged.values())
        if not self._dense:
            own = {id(p) for p in self._partition.local.values()} | {id(p) for p in tensors}
            tensors += [p for p in self.module.parameters() if id(p) not in own]
            buffers = list(self.module.buffers())
            tensors += memory_of(
                b for b in buffers if isinstance(b, MaskedTensor) or b.layout is torch.strided
            )
        works: list[Any] = []
        with torch.no_grad():
            sent = [t.detach().to(group.transport(t.device)).contiguous() for t in tensors]
            for t in sent:
                plain = torch.view_as_real(t) if t.is_complex() else t
                group.send_from(rank, plain.view(-1).view(torch.uint8), works)
            group.wait(works)
            for t, arrived in zip(tensors, sent, strict=True):
                if t.data_ptr() != arrived.data_ptr():
                    t.copy_(arrived)


class _RunOut(JoinHook):
    """Mirrors the exchanges of the ranks that still have input."""

    def __init__(self, model: DataParallel) -> None:
        self.model = model

    def main_hook(self) -> None:
        """One iteration of the other ranks."""
        model = self.model
        model._announce(False)
        model._exchange.group.wait(model._announced)
        if int(model._follows):
            model._exchange.take_part()

    def post_hook(self, is_last_joiner: bool) -> None:
        """At the end all ranks get the parameters of one of the last ranks with input."""
        model, group = self.model, self.model._exchange.group
        group.wait(model._announced)
        last = torch.tensor([group.rank if is_last_joiner else -1], device=group.device)
        group.largest(last)
        model._send_from(group, int(last))


class _PlainOutputs(nn.Module):
    """A module with output that DistributedDataParallel can traverse: it does not support MaskedTensors.

    It also adds a dot to every parameter name, which DistributedDataParallel needs to ignore some.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """Return the leaves of the output, and its structure."""
        return pytree.tree_flatten(self.module(*args, **kwargs))


def _new_group(ranks: ProcessGroup, timeout: datetime.timedelta | None) -> Any:
    """A group of the same ranks, so that other messages do not delay the exchange; with the same timeout."""
    if timeout is None:
        timeout = ranks.timeout()
    if ranks.group is None or ranks.group is torch.distributed.group.WORLD:
        return torch.distributed.new_group(timeout=timeout)
    members = torch.distributed.get_process_group_ranks(ranks.group)
    return torch.distributed.new_group(members, timeout=timeout, use_local_synchronization=True)


def _tensors(output: Any) -> Iterator[Tensor]:
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, Tensor):
            yield leaf
        elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            for part in dataclasses.fields(leaf):
                yield from _tensors(getattr(leaf, part.name, None))
