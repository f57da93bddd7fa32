"""What several ranks do for a gradient accumulator: exchanges of others are put off, totals compared and added up."""

from __future__ import annotations

import contextlib
import gc
import struct
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.distributed.agreement import check_consistent, digest
from maskgrad.distributed.all_reduction import is_distributed_tensor
from maskgrad.distributed.exchange import Exchange, NamedGradient
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.distributed.sharding.shards import is_sharded
from maskgrad.gradients.accumulated_losses import Plan
from maskgrad.gradients.accumulation_ranks import Tally
from maskgrad.gradients.attached import AnyGradient

__all__ = ["AccumulatingRanks", "imported", "replicating", "sharding"]


_FIRST = 4
"""Losses of which the first message tells."""


class AccumulatingRanks:
    """The ranks that accumulate gradients together; wrappers in ``module`` do not exchange until :meth:`close`.

    Wrappers are DistributedDataParallel, what ``prepare`` returns, and modules that ``fully_shard`` has changed.

    Raises:
        ValueError: a wrapper outside ``module`` exchanges a gradient of ``params``, or groups differ.
        TypeError: a wrapper whose exchange cannot be put off.
    """

    def __init__(self, module: nn.Module | None, params: Sequence[Tensor], group: Any) -> None:
        modules = [] if module is None else list(module.modules())
        replicated: list[Any] = [m for m in modules if _is(m, replicating())]
        self._sharded: list[Any] = [m for m in modules if _is(m, sharding())]
        old = imported("torch.distributed.fsdp", "FullyShardedDataParallel")
        if any(_is(m, old) for m in modules):
            raise TypeError(
                "GradientAccumulator: the module holds a FullyShardedDataParallel; use "
                "torch.distributed.fsdp.fully_shard, whose exchange can be put off"
            )
        known = {id(m) for m in modules} | {id(d) for m in replicated for d in getattr(m, "_dense", ())}
        _check_others({id(p) for p in params}, known, (*replicating(), *sharding(), *old))
        group = _common_group(replicated) if group is None else group
        self._ranks = ProcessGroup(group, "GradientAccumulator")
        self.size = self._ranks.size
        self._averaged = _averaged_tables(module, params)
        self.in_step = bool(self._sharded) or any(is_sharded(p) for p in params)
        self.silenced = bool(replicated or self._sharded)
        self._stack = contextlib.ExitStack()
        for wrapper in replicated:
            self._stack.enter_context(wrapper.no_sync())
        for wrapper in self._sharded:
            before = [group.reduce_grads for group in _groups(wrapper)]
            wrapper.set_requires_gradient_sync(False, recurse=False)
            self._stack.callback(wrapper.set_requires_gradient_sync, all(before), recurse=False)

    def combined(self, own: Tally | None, error: Exception | None) -> Tally:
        """Add up what all have accumulated; raises on all ranks if one has an ``error``, or if they differ."""
        if self.size == 1:
            if error is not None:
                raise error
            assert own is not None
            return own
        speaks = own if own is not None and own.plan is not None else None
        text = "" if speaks is None else _described(speaks)
        numbers = [] if speaks is None else _numbers(speaks)
        head = [int(error is not None), digest(text), int(speaks is None), len(numbers)]
        first = numbers[: 3 * _FIRST]
        gathered = self._gathered(head + first + [0] * (3 * _FIRST - len(first)))
        speaking = [row for row in gathered if not row[2]]
        if any(row[0] for row in gathered):
            check_consistent(self._ranks, text, error)
        if not speaking:
            return Tally(None, (), (), ())
        if len(speaking) < len(gathered) or any(row[1] != speaking[0][1] for row in speaking):
            # A rank that had no data means what the others mean.
            texts = self._ranks.gather_texts(text)
            text = text or next(one for one in texts if one)
            check_consistent(self._ranks, text)
        rows = [row[4:] for row in speaking]
        length = speaking[0][3]
        if length > 3 * _FIRST:
            rest = numbers[3 * _FIRST :] or [0] * (length - 3 * _FIRST)
            more = self._gathered(rest)
            rows = [row[4:] + extra for row, extra in zip(gathered, more, strict=True) if not row[2]]
        return _together(text, [row[:length] for row in rows])

    def reduce_shards(self) -> None:
        """Let ``fully_shard`` add up what it has gathered, as at the end of a backward pass that exchanges."""
        for wrapper in self._sharded:
            wrapper.set_requires_gradient_sync(True, recurse=False)
        try:
            for wrapper in self._sharded:
                state = wrapper._get_fsdp_state()
                if state._is_root:
                    context = state._state_ctx
                    # since PyTorch 2.15 set as a backward pass begins, and unset as it ends
                    if getattr(context, "manual_backward_finalization_active", False) is None:
                        context.manual_backward_finalization_active = False
                    state._root_post_backward_final_callback()
        finally:
            for wrapper in self._sharded:
                wrapper.set_requires_gradient_sync(False, recurse=False)
        for wrapper in self._sharded:  # averages were made: of so many ranks
            for group in _groups(wrapper):
                factor = group.gradient_divide_factor or group.mesh_info.mesh.size()
                for param in (one.sharded_param for one in group.fsdp_params):
                    if param.grad is not None:
                        param.grad.mul_(factor)

    def exchanged(
        self, params: Sequence[Tensor], gradients: Sequence[AnyGradient | None]
    ) -> list[AnyGradient | None]:
        """The sums over the ranks; nothing is written."""
        found = list(gradients)
        places = [n for n, p in enumerate(params) if not (is_distributed_tensor(p) or is_sharded(p))]
        named = [
            NamedGradient(f"gradient of parameter {n}", p.shape, p.dtype, p.device, gradients[n])
            for n in places
            for p in (params[n],)
        ]
        started = Exchange(named, self._ranks, "sum")
        started.send()
        for place, gradient in zip(places, started.finish(), strict=True):
            found[place] = gradient
        for place, param in enumerate(params):
            gradient = found[place]
            if id(param) in self._averaged and isinstance(gradient, Tensor):
                found[place] = gradient * self.size
        return found

    def close(self) -> None:
        """Let wrappers exchange again."""
        self._stack.close()

    def _gathered(self, numbers: list[int]) -> list[list[int]]:
        message = torch.tensor(numbers, dtype=torch.int64, device=self._ranks.device)
        return self._ranks.gather(message).tolist()


def _described(own: Tally) -> str:
    """The plan as a text, from which :func:`_plan` reads it again."""
    assert own.plan is not None
    names = "one loss" if own.plan.names is None else "losses " + repr(list(own.plan.names))
    weights = ", ".join(map(repr, own.plan.weights))
    return f"mean={own.mean!r}; scale={own.scale!r}; {names.replace(';', chr(92) + 'x3b')}; weights {weights}"


def _plan(text: str) -> Plan:
    import ast

    _, _, names, weights = text.split("; ")
    numbers = tuple(float(one) for one in weights.removeprefix("weights ").split(", "))
    return Plan(
        None if names == "one loss" else tuple(ast.literal_eval(names.removeprefix("losses "))), numbers
    )


def _numbers(own: Tally) -> list[int]:
    """Count, total and exponent of each loss, as integers that hold all of their bits."""
    return [
        number
        for total, count, exponent in zip(own.totals, own.counts, own.exponents, strict=True)
        for number in (count, struct.unpack("<q", struct.pack("<d", total))[0], exponent)
    ]


def _together(text: str, rows: list[list[int]]) -> Tally:
    counts = tuple(map(sum, zip(*(row[::3] for row in rows), strict=True)))
    bits = [[struct.unpack("<d", struct.pack("<q", one))[0] for one in row[1::3]] for row in rows]
    totals = tuple(map(sum, zip(*bits, strict=True)))
    exponents = tuple(map(max, zip(*(row[2::3] for row in rows), strict=True)))
    return Tally(_plan(text), totals, counts, exponents)


def _averaged_tables(module: nn.Module | None, params: Sequence[Tensor]) -> set[int]:
    """Rows of sharded tables, exchanged in each backward pass, whose gradients are averages over the ranks."""
    sharded = {id(p) for p in params if is_sharded(p)}
    found: set[int] = set()
    for owner in () if module is None else module.modules():
        own = {id(p) for p in owner.parameters(recurse=False)} & sharded
        sharded -= own
        if getattr(owner, "gradients", None) == "average":
            found |= own
    if sharded:
        raise ValueError(
            "GradientAccumulator: parameters are rows of sharded tables, and only the tables know whether their "
            "gradients are averages; pass the module instead of its parameters"
        )
    return found


def _common_group(wrappers: list[Any]) -> Any:
    """The process group of wrappers; None: the default one."""
    found = [w._group if hasattr(w, "_dense") else w.process_group for w in wrappers]
    world = torch.distributed.group.WORLD
    distinct = {id(world if group is None else group): group for group in found}
    if len(distinct) > 1:
        raise ValueError(
            "GradientAccumulator: the module holds wrappers of different process groups; say which ranks "
            "accumulate together: group="
        )
    return next(iter(distinct.values()), None)


def _groups(wrapper: Any) -> list[Any]:
    """The groups of parameters that ``fully_shard`` reduces together."""
    state = wrapper._get_fsdp_state()
    found = getattr(state, "_fsdp_param_groups", None)
    if found is None:  # up to PyTorch 2.10 there is at most one
        found = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
    return list(found)


def replicating() -> tuple[type, ...]:
    """Wrappers of which every rank has the same parameters."""
    return (
        *imported("torch.nn.parallel.distributed", "DistributedDataParallel"),
        *imported("maskgrad.distributed.data_parallel", "DataParallel"),
    )


def sharding() -> tuple[type, ...]:
    """Modules of which each rank has a part of the parameters."""
    return imported("torch.distributed.fsdp", "FSDPModule")


def imported(module: str, name: str) -> tuple[type, ...]:
    """A class, if it has been imported: otherwise there are no instances."""
    found = getattr(sys.modules.get(module), name, None)
    return () if found is None else (found,)


def _is(x: object, kinds: tuple[type, ...]) -> bool:
    return issubclass(type(x), kinds)  # not isinstance: proxies answer in their own ways


def _check_others(params: set[int], known: set[int], kinds: tuple[type, ...]) -> None:
    """ValueError if a module of one of ``kinds`` that is not ``known`` has one of the parameters."""

    def others() -> list[Any]:
        found = [one for one in gc.get_objects() if _is(one, kinds) and id(one) not in known]
        return [one for one in found if any(id(p) in params for p in one.parameters())]

    if not kinds or not others():
        return
    gc.collect()  # it may be gone, but for a cycle of references
    for other in others():
        raise ValueError(
            f"GradientAccumulator: a {type(other).__name__} exchanges the gradients of these parameters in each "
            "backward pass, and can wait only if it is given itself: GradientAccumulator(model) with the module that "
            "is called, instead of its parameters or what is inside"
        )
