"""Process groups whose members are in this process: collectives are methods of a ``ProcessGroup`` written in Python.

What a member gives is copied, and each computes what it gets from all of them, in the same order.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import distributed_c10d as c10d

from maskgrad.distributed.batch_normalization import SyncBatchNorm
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.doctor.state import referred_to
from maskgrad.gradients.accumulation import GradientAccumulator
from maskgrad.gradients.accumulation_ranks import Alone, found_ranks

__all__ = ["LAUNCHERS", "World", "accumulators_and_launchers", "look_again", "world_of_one"]

_core: Any = torch._C._distributed_c10d
_c10d: Any = c10d
_numbers = itertools.count()
_TABLES = [
    "pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg", "pg_coalesce_state",
]  # fmt: skip
_REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add, "AVG": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum,
}  # fmt: skip
#: packages of objects that count ranks themselves
LAUNCHERS = ("accelerate", "deepspeed", "lightning", "pytorch_lightning", "transformers.trainer")


class _Group(dist.ProcessGroup):
    """The ranks of a group, as one of them sees it; ``meeting``, if there are several, has what they give."""

    def __init__(self, meeting: Any, members: tuple[int, ...], rank: int) -> None:
        super().__init__(members.index(rank), len(members))  # type: ignore[call-arg]
        self.meeting, self.members, self.me = meeting, members, members.index(rank)
        self.label = f"simulated-{next(_numbers)}"

    group_name = property(lambda self: self.label)


class World(SimpleNamespace):
    """What ``torch.distributed`` knows of its groups, for one rank: the names of PyTorch's ``_World``."""

    def __init__(self, meeting: Any, size: int, rank: int) -> None:
        tables: dict[str, Any] = {name: {} for name in _TABLES}
        super().__init__(**tables, comms=[], group_count=0, meeting=meeting, rank=rank)
        self.default_pg = self.new_group(range(size))

    def new_group(self, ranks: Sequence[int] | None = None, *_: Any, **__: Any) -> Any:
        """As ``torch.distributed.new_group``; PyTorch's registry of names is one for all ranks."""
        members = self.default_pg.members if ranks is None else tuple(sorted(ranks))
        if self.rank not in members:
            return dist.GroupMember.NON_GROUP_MEMBER
        group, store = _Group(self.meeting, members, self.rank), _core.HashStore()
        places = {member: place for place, member in enumerate(members)}
        known = (("gloo", store), group.label, places, "cpu:gloo,cuda:gloo", "")
        for table, value in zip(_TABLES, known, strict=False):
            vars(self)[table][group] = value
        _core._register_process_group(group.label, group)
        return group

    def close(self) -> None:
        """Forget the names of its groups."""
        for label in self.pg_names.values():
            _core._unregister_process_group(label)


def _total(parts: Sequence[Sequence[Tensor]], options: Any = None) -> list[Tensor]:
    operation = dist.ReduceOp.SUM if options is None else options.reduceOp
    name = next(known for known in _REDUCTIONS if operation == getattr(dist.ReduceOp, known))
    sums = [reduce(_REDUCTIONS[name], each) for each in zip(*parts, strict=True)]
    return [one / len(parts) for one in sums] if name == "AVG" else sums


def _method(what: str, given: Callable[..., Any], got: Callable[..., Any]) -> Callable[..., Any]:
    """A collective: what a rank gives, and when all have, where the results go and what they are."""

    def method(group: _Group, *args: Any, **named: Any) -> Any:
        args = (*args, *named.values())
        root = next((arg.rootRank for arg in reversed(args) if hasattr(arg, "rootRank")), None)
        words, own = what if root is None else f"{what} rank {root}", list(given(group, *args))
        alone = [[tensor.detach().clone() for tensor in own]]
        targets, values = got(group, group.meeting.meet(group, words, own) if group.meeting else alone, *args)
        for target, value in zip(targets, values, strict=True):
            target.detach().copy_(value.view_as(target))  # collectives are no operations of autograd
        if group.meeting:
            group.meeting.exchanged(words, own, list(targets))
        future: Any = torch.futures.Future()
        future.set_result(list(targets))
        return _core._create_work_from_future(future)

    return method


#: by the names of methods, several since PyTorch 2.13 has others; arguments are outputs, inputs, options
_COLLECTIVES: Any = (
    ("allreduce allreduce_coalesced", "all_reduce",
     lambda g, x, o=None: x, lambda g, p, x, o=None: (x, _total(p, o))),
    ("reduce", "reduce to", lambda g, x, o: x, lambda g, p, x, o: (x, _total(p, o) if g.me == o.rootRank else x)),
    ("broadcast", "broadcast from", lambda g, x, o: x, lambda g, p, x, o: (x, p[o.rootRank])),
    ("barrier", "barrier", lambda g, *o: (), lambda g, p, *o: ((), ())),
    ("allgather", "all_gather", lambda g, y, x, o=0: x, lambda g, p, y, x, o=0: (y[0], [part[0] for part in p])),
    ("gather", "gather to", lambda g, y, x, o: x, lambda g, p, y, x, o: (y[0], [q[0] for q in p]) if y else ((), ())),
    ("scatter", "scatter from", lambda g, y, x, o: x[0] if x else (), lambda g, p, y, x, o: (y, [p[o.rootRank][g.me]])),
    ("all_gather_single _allgather_base", "all_gather", lambda g, y, x, o=0: [x],
     lambda g, p, y, x, o=0: ([y], [torch.cat([part[0].flatten() for part in p])])),
    ("reduce_scatter", "reduce_scatter", lambda g, y, x, o: x[0], lambda g, p, y, x, o: (y, [_total(p, o)[g.me]])),
    ("reduce_scatter_single _reduce_scatter_base", "reduce_scatter", lambda g, y, x, o: [x],
     lambda g, p, y, x, o: ([y], [_total(p, o)[0].flatten().chunk(g.size())[g.me]])),
    ("alltoall", "all_to_all", lambda g, y, x, o=0: x, lambda g, p, y, x, o=0: (y, [part[g.me] for part in p])),
    ("all_to_all_single alltoall_base", "all_to_all",
     lambda g, y, x, a, b, o=0: x.split(list(b)) if b else x.chunk(g.size()),
     lambda g, p, y, x, a, b, o=0: ([y], [torch.cat([part[g.me] for part in p])])),
)  # fmt: skip
for _names, *_how in _COLLECTIVES:
    for _name in _names.split():
        setattr(_Group, _name, _method(*_how))


def accumulators_and_launchers(step: Any) -> tuple[list[GradientAccumulator], list[str]]:
    """The accumulators that a step uses, made outside of it, and kinds of objects that count ranks themselves."""
    seen, waiting = dict[int, Any](), [step]
    while waiting:
        thing = waiting.pop()
        if id(thing) not in seen and not isinstance(thing, (Tensor, ModuleType)):
            seen[id(thing)] = thing
            waiting += referred_to(thing, type(thing))
    kinds = [type(thing) for thing in seen.values() if not isinstance(thing, nn.Module)]
    kinds = [kind for kind in kinds if kind.__module__.startswith(LAUNCHERS)]
    accumulators = [thing for thing in seen.values() if type(thing) is GradientAccumulator]
    return accumulators, [f"{kind.__module__}.{kind.__name__}" for kind in kinds]


def look_again(accumulators: list[GradientAccumulator]) -> None:
    """Let accumulators look for the ranks once more."""
    for accumulator in accumulators:
        ranks: Any = copy.copy(accumulator._ranks)
        if type(ranks) is Alone:
            ranks = found_ranks(None, list(accumulator._named.values()), None)
        else:
            ranks._ranks = ProcessGroup(None, "GradientAccumulator")
            ranks.size, ranks.rank = ranks._ranks.size, ranks._ranks.rank
        accumulator._ranks, accumulator._losses = ranks, dict(accumulator._losses)


@contextlib.contextmanager
def world_of_one(step: Any) -> Iterator[None]:
    """Inside, the program is the only rank of a simulated group, unless it has several: these are refused."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        yield
        return
    world, (accumulators, _) = World(None, 1, 0), accumulators_and_launchers(step)
    before = [(accumulator, accumulator._ranks) for accumulator in accumulators]
    new_group = lambda *args, **named: _c10d._world.new_group(*args, **named)  # noqa: E731, PLW0108
    with (
        contextlib.closing(world), mock.patch.object(c10d, "_world", world),
        mock.patch.dict(os.environ, RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1"),
        mock.patch.object(nn.SyncBatchNorm, "forward", _synchronized),
        mock.patch.object(dist, "new_group", new_group), mock.patch.object(c10d, "new_group", new_group),
    ):  # fmt: skip
        try:
            look_again(accumulators)
            yield
        finally:
            for accumulator, ranks in before:
                accumulator._ranks = ranks


def _synchronized(norm: nn.Module, x: Tensor) -> Any:
    """PyTorch's needs an accelerator."""
    ours: Any = copy.copy(norm)
    ours.__class__ = SyncBatchNorm
    return ours.forward(x)
