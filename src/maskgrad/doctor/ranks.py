"""Several ranks: none waits for another during an examination; at the end their reports become one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from maskgrad.distributed.accumulation import REPLICATING, imported, sharding
from maskgrad.doctor.report import Report, identity
from maskgrad.errors import ExaminationError

__all__ = [
    "NOT_WATCHED", "check_examinable", "end_group_last", "gathered_report", "is_sharded", "united",
    "waited_for", "with_fake_group", "without_replication",
]  # fmt: skip

#: why sharded parameters are left alone
NOT_WATCHED = (
    "the parameters of {} are sharded, which the doctor cannot track: nothing is watched; run the script without "
    "fully_shard, on one process or under DistributedDataParallel"
)


def with_fake_group(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a collective operation with a group that sends nothing: every rank has what this one has."""
    names: Any = torch.distributed.distributed_c10d
    inside: list[Any] = []
    for declared, given in zip(func._schema.arguments, args, strict=False):
        if isinstance(given, torch.ScriptObject) and "ProcessGroup" in str(declared.type):
            group = torch.distributed.ProcessGroup.unbox(given)
            inside.append(_fake_group(group.rank(), group.size()).boxed())
        elif declared.name == "group_name" and isinstance(given, str):
            group = names._resolve_process_group(given)
            inside.append(_fake_group(group.rank(), group.size()).group_name)
        else:
            inside.append(given)
    return tuple(inside)


@functools.cache
def _fake_group(rank: int, size: int) -> Any:
    from torch._C._distributed_c10d import FakeProcessGroup, _register_process_group

    make: Callable[[int, int], Any] = getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)
    distributed: Any = torch.distributed
    custom = distributed.ProcessGroup.BackendType.CUSTOM
    group = distributed.ProcessGroup(distributed.HashStore(), rank, size)
    for device in ("cpu", "cuda"):
        group._register_backend(torch.device(device), custom, make(rank, size))
    group._set_default_backend(custom)
    group._set_group_name(f"maskgrad-doctor-{rank}-{size}")
    _register_process_group(group.group_name, group)
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


def is_sharded(module: nn.Module) -> bool:
    """Whether ranks share the parameters of a module: none of them can compute alone."""
    kinds = (
        *sharding(),
        *imported("torch.distributed.fsdp", "FullyShardedDataParallel"),
        *imported("torch.distributed.tensor", "DTensor"),
    )
    return any(isinstance(part, kinds) for part in (*module.modules(), *module.parameters()))


def check_examinable(module: nn.Module) -> None:
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


def waited_for(types: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments in which results of functional collectives are plain tensors: they are about to be read."""
    for kind in types:
        if kind.__name__ == "AsyncCollectiveTensor":
            wait: Callable[[Any], Tensor] = lambda tensor: tensor.trigger_wait()  # noqa: E731
            args, kwargs = tree_map_only(kind, wait, (args, kwargs))
    return args, kwargs


#: the lists of a report, and which words of their members say what it is about
_LISTS = {"findings": "message", "notes": "message", "experiments": "changed", "skipped": "why"}


def united(reports: Mapping[int, Report]) -> Report:
    """The reports of ranks as one; what not all have says in its words who has it."""
    whole = Report()
    for part, words in _LISTS.items():
        found: dict[object, dict[int, Any]] = {}
        for rank, report in reports.items():
            for one in getattr(report, part):
                found.setdefault(identity(one) if part == "findings" else one, {}).setdefault(rank, one)
        for by_rank in found.values():
            one = next(iter(by_rank.values()))  # as the first rank has it
            if len(by_rank) < len(reports):
                who = f"on rank{'s' * (len(by_rank) > 1)} {', '.join(map(str, by_rank))}: "
                one = replace(one, **{words: who + getattr(one, words)})
            getattr(whole, part).append(one)
    whole.inventory = next((report.inventory for report in reports.values() if report.inventory), [])
    return whole


def gathered_report(result: Report | Exception, group: Any) -> Report:
    """The reports of all ranks of a group, united; the error of one is an error of all."""
    own: Any = result if isinstance(result, Report) else f"{type(result).__name__}: {result}"
    found: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(found, own, group=group)
    if isinstance(result, Exception):
        raise result
    for rank, other in enumerate(found):
        if isinstance(other, str):
            raise ExaminationError(f"step: rank {rank} could not be examined ({other}); fix that rank first")
    return united(dict(enumerate(found)))
