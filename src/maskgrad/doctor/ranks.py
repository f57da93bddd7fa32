"""Programs of one rank: exchanges that send nothing. Several ranks, and sharded parameters, are refused."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from maskgrad.distributed.accumulation import REPLICATING, imported, sharding

__all__ = ["end_group_last", "waited_for", "why_refused", "with_fake_group", "without_replication"]


def with_fake_group(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a collective operation with a group of one rank that sends nothing."""
    inside: list[Any] = []
    for declared, given in zip(func._schema.arguments, args, strict=False):
        if isinstance(given, torch.ScriptObject) and "ProcessGroup" in str(declared.type):
            inside.append(_fake_group().boxed())
        elif declared.name == "group_name" and isinstance(given, str):
            with contextlib.suppress(RuntimeError):  # destroy_process_group() has forgotten its name
                torch._C._distributed_c10d._register_process_group(_fake_group().group_name, _fake_group())
            inside.append(_fake_group().group_name)
        else:
            inside.append(given)
    return tuple(inside)


@functools.cache
def _fake_group() -> Any:
    from torch._C._distributed_c10d import FakeProcessGroup

    make: Callable[[int, int], Any] = getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)
    distributed: Any = torch.distributed
    custom = distributed.ProcessGroup.BackendType.CUSTOM
    group = distributed.ProcessGroup(distributed.HashStore(), 0, 1)
    for device in ("cpu", "cuda"):
        group._register_backend(torch.device(device), custom, make(0, 1))
    group._set_default_backend(custom)
    group._set_group_name("maskgrad-doctor")
    return group


@contextlib.contextmanager
def without_replication() -> Iterator[None]:
    """Inside, modules that replicate their parameters are what they wrap: nothing is counted, sent or waited for."""
    with contextlib.ExitStack() as stack:
        for kind in REPLICATING:
            stack.enter_context(mock.patch.object(kind, "forward", _inner))
        yield


def end_group_last(module: nn.Module) -> None:
    """Let DistributedDataParallel release its process group after its reducer, in the order of attributes.

    What is exchanged under a mode or in a backward pass holds Python objects. gloo's thread needs the GIL to release
    them, and a group that ends waits for this thread: from Python without the GIL, from the reducer with it, forever.
    """
    attributes = vars(module)
    if "reducer" in attributes and "process_group" in attributes:
        attributes["process_group"] = attributes.pop("process_group")


def _inner(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
    if getattr(wrapper, "device_ids", None):
        from torch.distributed.utils import _to_kwargs

        moved = _to_kwargs(args, kwargs, torch.device(wrapper.device_type, wrapper.device_ids[0]), False)
        args, kwargs = moved[0][0], moved[1][0]
    return wrapper.module(*args, **kwargs)


def why_refused(module: nn.Module | None = None) -> str:
    """Why a program, or the parameters of a module, are left alone; empty if they are not."""
    count = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if count > 1:
        return f"one of {count} ranks cannot compute alone; run it on one, torchrun --nproc-per-node=1"
    fully = imported("torch.distributed.fsdp", "FullyShardedDataParallel")
    kinds = (*sharding(), *fully, *imported("torch.distributed.tensor", "DTensor"))
    for part in () if module is None else (*module.modules(), *module.parameters()):
        if isinstance(part, kinds):
            return (
                f"the parameters of {type(module).__name__} are sharded (fully_shard, DTensor), which cannot be "
                f"tracked; examine the model before fully_shard(model)"
            )
        if getattr(part, "static_graph", False) and not getattr(
            part, "_static_graph_delay_allreduce_enqueued", True
        ):
            # its hooks count every backward pass before the first exchange, and later wait for as many
            return (
                f"{type(part).__name__}(static_graph=True) learns its graph from the first step that is "
                "exchanged; examine after that step, or the module before it is wrapped"
            )
    return ""


def waited_for(types: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments in which results of functional collectives are plain tensors: they are about to be read."""
    for kind in types:
        if kind.__name__ == "AsyncCollectiveTensor":
            wait: Callable[[Any], Tensor] = lambda tensor: tensor.trigger_wait()  # noqa: E731
            args, kwargs = tree_map_only(kind, wait, (args, kwargs))
    return args, kwargs
