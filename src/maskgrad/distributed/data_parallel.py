"""A module on several ranks: dense gradients through DistributedDataParallel, others through our exchange."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from maskgrad.distributed.end_of_backward import ExchangeAtEnd
from maskgrad.distributed.partition import ParameterPartition, check_gradient_is_dense
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.masked_tensor.torch_patches.data_parallel import REPLICAS, refuse_masked

__all__ = ["DataParallel"]


class DataParallel(nn.Module):
    """Result of :func:`maskgrad.distributed.prepare`; the attribute ``module`` is its argument."""

    def __init__(
        self,
        module: nn.Module,
        ranks: ProcessGroup,
        parts: ParameterPartition,
        init_sync: bool,
        timeout: datetime.timedelta | None,
        ddp_options: dict[str, Any],
    ) -> None:
        super().__init__()
        self.module = module
        self._group = ranks.group
        self.require_backward_grad_sync = True
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
            _send_from_first(own, [*parts.exchanged.values(), *([] if self._dense else _rest(module, parts))])
        REPLICAS.add(self)
        self._exchange = ExchangeAtEnd(parts.exchanged, own)

    @torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]  # what is inside is compiled
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        synchronize = torch.is_grad_enabled() and self.require_backward_grad_sync
        self._exchange.arm(synchronize)
        if not self._dense:
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


def _rest(module: nn.Module, parts: ParameterPartition) -> list[Tensor]:
    """Parameters without a gradient, and buffers: what DistributedDataParallel sends if it is used."""
    known = {id(p) for p in (*parts.local.values(), *parts.exchanged.values())}
    refuse_masked(module.buffers())
    buffers = [b for b in module.buffers() if b.layout is torch.strided]
    return [*(p for p in module.parameters() if id(p) not in known), *buffers]


@torch.no_grad()
def _send_from_first(group: ProcessGroup, tensors: list[Tensor]) -> None:
    """Replace tensors by those of rank 0."""
    works: list[Any] = []
    sent = [t.detach().to(group.transport(t.device)).contiguous() for t in tensors]
    for t in sent:
        plain = torch.view_as_real(t) if t.is_complex() else t
        group.send_from_first(plain.view(-1).view(torch.uint8), works)
    group.wait(works)
    for t, arrived in zip(tensors, sent, strict=True):
        if t.data_ptr() != arrived.data_ptr():
            t.copy_(arrived)


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
