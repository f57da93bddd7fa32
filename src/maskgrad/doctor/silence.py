"""Runs in which no rank waits for another: each makes as many as it needs, and others make more or fewer."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn

from maskgrad.distributed.accumulation import imported, replicating, sharding
from maskgrad.errors import ExaminationError

__all__ = ["alone", "is_replicated", "is_sharded", "refuse_coupled", "to_nobody"]

_NAME = "maskgrad-doctor-{}-{}"


def to_nobody(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a collective operation with a group that sends nothing: every rank has what this one has."""
    names: Any = torch.distributed.distributed_c10d
    inside: list[Any] = []
    for declared, given in zip(func._schema.arguments, args, strict=False):
        if isinstance(given, torch.ScriptObject) and "ProcessGroup" in str(declared.type):
            inside.append(_silent_like(torch.distributed.ProcessGroup.unbox(given)).boxed())
        elif declared.name == "group_name" and isinstance(given, str):
            inside.append(_silent_like(names._resolve_process_group(given)).group_name)
        else:
            inside.append(given)
    return tuple(inside)


def _silent_like(group: Any) -> Any:
    return _silent(group.rank(), group.size())


@functools.cache
def _silent(rank: int, size: int) -> Any:
    from torch._C._distributed_c10d import FakeProcessGroup, _register_process_group

    make: Callable[[int, int], Any] = getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)
    distributed: Any = torch.distributed
    group = distributed.ProcessGroup(distributed.HashStore(), rank, size)
    for device in ("cpu", "cuda"):
        group._register_backend(
            torch.device(device), torch.distributed.ProcessGroup.BackendType.CUSTOM, make(rank, size)
        )
    group._set_default_backend(torch.distributed.ProcessGroup.BackendType.CUSTOM)
    group._set_group_name(_NAME.format(rank, size))
    _register_process_group(group.group_name, group)
    return group


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Inside, modules that replicate their parameters are what they wrap: nothing is counted, sent or waited for."""
    with contextlib.ExitStack() as stack:
        for kind in replicating():
            stack.enter_context(mock.patch.object(kind, "forward", _inner))
        yield


def _inner(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
    if getattr(wrapper, "device_ids", None):
        from torch.distributed.utils import _to_kwargs

        moved = _to_kwargs(args, kwargs, torch.device(wrapper.device_type, wrapper.device_ids[0]), False)
        args, kwargs = moved[0][0], moved[1][0]
    return wrapper.module(*args, **kwargs)


def is_replicated(module: nn.Module) -> bool:
    """Whether other ranks have the same parameters."""
    return isinstance(module, replicating())


def is_sharded(module: nn.Module) -> bool:
    """Whether ranks share the parameters of a module: none of them can compute alone."""
    wrappers = (*sharding(), *imported("torch.distributed.fsdp", "FullyShardedDataParallel"))
    sharded = imported("torch.distributed.tensor", "DTensor")
    return any(isinstance(m, wrappers) for m in module.modules()) or any(
        isinstance(parameter, sharded) for parameter in module.parameters()
    )


def refuse_coupled(module: nn.Module) -> None:
    """ExaminationError if ranks share the parameters of a module, or count its first backward passes."""
    for wrapper in module.modules():
        if getattr(wrapper, "static_graph", False) and not getattr(
            wrapper, "_static_graph_delay_allreduce_enqueued", True
        ):
            # its hooks count every backward pass before the first exchange, and later wait for as many
            raise ExaminationError(
                f"model: {type(wrapper).__name__}(static_graph=True) learns its graph from the first step that is "
                "exchanged; examine after that step, or the module before it is wrapped"
            )
    if is_sharded(module):
        raise ExaminationError(
            f"model: the parameters of {type(module).__name__} are sharded (fully_shard, DTensor), and no rank can run "
            f"it alone; examine the model before fully_shard(model), on one process or under DistributedDataParallel"
        )
