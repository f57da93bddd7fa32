"""Ranks of a step as threads of this process, of which one runs at a time.

A rank runs until it waits for another or ends; then the next goes on. At this switch all that ranks share is exchanged:
gradients, memory that the step writes, attributes of modules, random numbers, hooks, states of optimizers, the world of
``torch.distributed``. So the step and its modules are used as they are. That no rank can go on is seen at once.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import ctypes
import os
import random
import sys
import threading
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from maskgrad.distributed.accumulation import REPLICATING, imported
from maskgrad.doctor.batches import fields, tensor_of
from maskgrad.doctor.modes import Guarded, outside
from maskgrad.doctor.operations import Operated, Place, dense, here, is_users, key_of
from maskgrad.doctor.runner import Outcome, StepRunner, backward_from, call_step, loss_of, named
from maskgrad.doctor.state import refill
from maskgrad.errors import ExaminationError
from maskgrad.simulated_ranks.blame import widened
from maskgrad.simulated_ranks.groups import World, accumulators_and_launchers, look_again

__all__ = ["Ranks", "RanksError", "averaged"]

#: how long a rank may run without waiting for another; while this process is stopped, no time counts
LIMIT_S = 120


class _Ended(BaseException):
    """Unwinds a rank that waits for others that will not come; no ``except Exception`` of a step catches it."""


class RanksError(ExaminationError):
    """Why the ranks did not end, and where; ``by_ranks``: they wait for each other, as one rank would not."""

    place: Place | None = None
    by_ranks = False


class Ranks:
    """Ranks that run a step, each on a batch; if ``averages``, backward passes end with an average over the ranks."""

    def __init__(self, runner: StepRunner, batches: Sequence[Any], kind: Any, averages: bool = False) -> None:
        self.size, self._runner, self._batches, self._averages = len(batches), runner, batches, averages
        self.modes, self._state = [kind() for _ in batches], runner.state
        #: whether the step calls backward(), and sends gradients itself
        self.calls_backward = self.sends_gradients = False
        self._error, self._running, self._turn = list[RanksError](), set(range(self.size)), 0
        self._ready, self._slots = deque(range(self.size)), dict[Any, dict[int, Any]]()
        self._paused, self._go = threading.Semaphore(0), [threading.Semaphore(0) for _ in batches]
        self._written, self._gradients = dict[int, tuple[Tensor, int]](), defaultdict[int, list[Tensor]](list)
        self._own: list[list[Any]] = [[partial(_seed, rank)] * bool(rank) for rank in range(self.size)]

    def run(self) -> Outcome:
        """The average of the gradients."""
        runner = copy.copy(self._runner)
        runner.step = self._run
        runner.run(Guarded())
        names = {id(leaf): name for name, leaf in named(self._state.leaves(), runner.roots)}
        return averaged({names[at]: gradients for at, gradients in self._gradients.items()}, self.size)

    def _run(self, _: Any) -> None:
        self._accumulators, launchers = accumulators_and_launchers(self._runner.step)
        for name in launchers:
            raise RanksError(f"the step uses {name}, which counts ranks itself and sees no simulated ones")
        self._worlds = [World(self, self.size, rank) for rank in range(self.size)]
        given = {id(tensor_of(held)) for held in fields(self._runner.batch).values()}
        self._params = [leaf for leaf in self._state.leaves() if id(leaf) not in given]
        watches = (accumulator._watch for accumulator in self._accumulators)
        held = map(vars, (*self._state.modules.values(), *self._accumulators, *watches))
        self._attributes = [(table, dict(table)) for table in held]
        for mode in self.modes:
            mode.keep, mode.run = partial(self._keep, mode.keep), partial(self._operation, mode.run)
        self._state._keep = lambda tensor: self.modes[self._turn].keep(tensor)  # noqa: PLW0108  (of this turn)
        with contextlib.ExitStack() as stack:
            # what is global is changed here, once, and not in each thread
            closing = map(contextlib.closing, self._worlds)
            for context in (*closing, *map(outside, self.modes), *self._patches()):
                stack.enter_context(context)
            self._take_turns()
        for error in self._error:
            raise error
        for leaf in self._state.leaves():  # the runner asks whether there was a backward pass
            leaf.grad = torch.zeros_like(leaf)

    def _patches(self) -> Iterator[contextlib.AbstractContextManager[Any]]:
        yield mock.patch.dict(os.environ, WORLD_SIZE=str(self.size), LOCAL_WORLD_SIZE=str(self.size))
        yield mock.patch.object(c10d, "_world", c10d._world)
        yield mock.patch.object(torch.autograd, "backward", partial(self._backward, torch.autograd.backward))
        meshes: Any = imported("torch.distributed.device_mesh", "DeviceMesh")
        refused: list[Any] = [(dist, "init_process_group"), *((kind, "size") for kind in meshes)]
        refused += [(kind, "__init__") for kind in (*meshes, *REPLICATING)]
        for holder, name in refused:
            why = f"the step calls {holder.__name__}.{name}: groups and wrappers are made outside of it, and tensor "
            error = RanksError(f"{why}parallel, context parallel and fully_shard are not simulated")
            yield mock.patch.object(holder, name, mock.Mock(side_effect=error))
        yield self._in_double() if getattr(self.modes[0], "double", False) else contextlib.nullcontext()
        yield _disable_current_modes()

    @contextlib.contextmanager
    def _in_double(self) -> Iterator[None]:
        buffers = (buffer for root in self._runner.roots for buffer in root.buffers())
        held, default = {t: t.data for t in (*self._state.leaves(), *buffers)}, torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        for tensor, data in held.items():
            tensor.data = widened(data)
        try:
            yield
        finally:
            torch.set_default_dtype(default)
            for tensor, data in held.items():
                tensor.grad, tensor.data = None, data

    def _take_turns(self) -> None:
        bodies = [partial(contextvars.copy_context().run, self._body, rank) for rank in range(self.size)]
        threads = [threading.Thread(target=body, daemon=True) for body in bodies]
        for thread in threads:
            thread.start()
        while self._running:
            if not self._ready:  # ranks wait for each other, or unwind one after the other
                calls = {rank: call for slot in self._slots.values() for rank, call in slot.items()}
                ended = sorted({*range(self.size)} - self._running)
                words = "".join(f"; rank {rank} has ended without it" for rank in ended)
                self._stop(_listed(calls, "waits in") + words, calls[min(calls)][2], by_ranks=True)
                self._ready.extend(self._running)
            rank = self._turn = self._ready.popleft()
            self._enter(rank)
            self._go[rank].release()
            if not any(self._paused.acquire(timeout=1.0) for _ in range(LIMIT_S)):
                late = threads[rank].ident or 0
                place = _place(traceback.extract_stack(sys._current_frames()[late]))
                self._stop(f"rank {rank} has not ended after {LIMIT_S} s", place)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(late), ctypes.py_object(_Ended))
                self._turn = -1
                return
            self._leave(rank)

    def _body(self, rank: int) -> None:
        self._go[rank].acquire()
        torch.autograd.set_multithreading_enabled(False)  # backward passes stay in this thread
        mode, runner = self.modes[rank], self._runner
        try:
            look_again(self._accumulators)
            with contextlib.ExitStack() as stack:
                TorchDispatchMode.__enter__(mode)  # the mode's own changes what is global
                stack.callback(TorchDispatchMode.__exit__, mode, None, None, None)
                for beside in mode._beside:
                    stack.enter_context(beside)
                loss = loss_of(call_step(runner.step, runner.presented, self._batches[rank]))
                if all(leaf.grad is None for leaf in self._state.leaves()):
                    backward_from(loss)
                else:
                    self.calls_backward = True
            for param in self._params:
                if param.grad is not None:
                    self._gradients[id(param)].append(dense(param.grad))
        except _Ended:
            pass
        except BaseException as error:
            why = str(error) if isinstance(error, RanksError) else f"{type(error).__name__}: {error}"
            why = f"rank {rank} of {self.size} fails: {why}"
            self._stop(why, _place(traceback.extract_tb(error.__traceback__)))
        self._running.discard(rank)
        self._paused.release()

    def _stop(self, why: str, place: Place | None, *, by_ranks: bool = False) -> None:
        error = RanksError(why)
        error.place, error.by_ranks = place, by_ranks
        self._error = self._error or [error]

    def _note(self, event: str, *about: Any) -> None:
        getattr(self.modes[self._turn], event, lambda *_: None)(*about)

    def _backward(self, run: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if torch._C._current_autograd_node() is not None:
            return run(*args, **kwargs)
        self._note("_begins", args[0] if args else kwargs["tensors"])
        run(*args, **kwargs)
        wrapped = (module for module in self._state.modules.values() if isinstance(module, REPLICATING))
        sending = (wrapper for wrapper in wrapped if wrapper.require_backward_grad_sync)
        inside = {id(param) for wrapper in sending for param in wrapper.parameters()}
        params = [p for p in self._params if p.requires_grad and (self._averages or id(p) in inside)]
        if params:
            with _disable_current_modes(), torch.no_grad():
                self._average(params)
        return self._note("_ends")

    def _average(self, params: Sequence[Tensor]) -> None:
        """As when a backward pass of DistributedDataParallel ends."""
        given = [torch.zeros_like(param) if param.grad is None else dense(param.grad) for param in params]
        given.append(torch.tensor([param.grad is not None for param in params]))
        group = self._worlds[self._turn].default_pg
        parts = self.meet(group, "the average of gradients when backward() ends", given)
        for place, param in enumerate(params):
            if any(part[-1][place] for part in parts):
                param.grad = torch.stack([part[place] for part in parts]).sum(0) / self.size
                self.modes[self._turn]._made.add(key_of(param.grad))

    def _keep(self, keep: Callable[[Tensor], None], tensor: Tensor) -> None:
        if (key := key_of(tensor)) is not None:  # as it was before any rank wrote there
            self._written.setdefault(key, (tensor, tensor._version))
        keep(tensor)

    def _operation(self, run: Callable[[Operated], Any], call: Operated) -> Any:
        func: Any = call.func
        if self._turn < 0:  # late: everything is as it was before
            raise _Ended
        if call.facts.collective:
            ours = {label for world in self._worlds for label in world.pg_names.values()}
            given = {at.name: arg for at, arg in zip(func._schema.arguments, call.args, strict=False)}
            if str(func).startswith("c10d.") or ours.isdisjoint([given.get("group_name", min(ours))]):
                why = "sends from rank to rank, or passes a process group that was made outside of it"
                self._stop(f"the step {why}; leave out group=", here())
                raise _Ended
        return run(call)

    def meet(self, group: Any, what: str, given: list[Tensor]) -> list[list[Tensor]]:
        """Give something to the members of a group; what all of them gave, once they have."""
        rank, slot = self._turn, self._slots.setdefault(group.members, {})
        slot[rank] = (what, [tensor.detach().clone() for tensor in given], here())
        if len(slot) == group.size():
            del self._slots[group.members]
            self._ready.extend(member for member in group.members if member != rank)
        else:
            self._paused.release()
            self._go[rank].acquire()
        if len({call[0] for call in slot.values()}) > 1:
            self._stop(_listed(slot, "calls"), slot[min(slot)][2], by_ranks=True)
        if self._error:
            raise _Ended
        return [slot[member][1] for member in group.members]

    def exchanged(self, what: str, given: list[Tensor], targets: list[Tensor]) -> None:
        """A collective has written its results."""
        own = {key_of(leaf.grad): leaf.numel() for leaf in self._state.leaves() if leaf.grad is not None}
        sizes = {*own.values(), sum(own.values())} - {1}
        flat = [t for t in given if t.is_floating_point() and not t.requires_grad and t.numel() in sizes]
        self.sends_gradients |= bool(flat) or any(key_of(tensor) in own for tensor in given)
        self._note("_exchanged", what, given, targets)

    def _leave(self, rank: int) -> None:
        """Put away what is this rank's own, and put back what was before."""
        own: list[Any] = [self._state.as_now().restore]
        for key, (kept, before) in self.modes[rank]._kept.items():
            tensor, version = self._written[key]
            own.append(partial(_write, tensor, kept, kept.untyped_storage().clone(), tensor._version))
            _write(tensor, kept, before.untyped_storage(), version)
        self._own[rank] = own + [partial(refill, table, dict(table)) for table, _ in self._attributes]
        self._state.restore()
        for leaf in self._state.leaves():
            leaf.grad = None
        for table, before in self._attributes:
            refill(table, before)

    def _enter(self, rank: int) -> None:
        c10d._world = self._worlds[rank]  # type: ignore[assignment]
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        for put_back in self._own[rank]:
            put_back()


def averaged(gradients: Mapping[str, list[Tensor]], size: int) -> Outcome:
    """As DistributedDataParallel does: a gradient that a rank lacks counts as zero."""
    return Outcome(None, {name: torch.stack(each).sum(0) / size for name, each in gradients.items()})


def _seed(rank: int) -> None:
    number = (torch.initial_seed() + rank) % 2**32
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(number)


def _write(tensor: Tensor, kept: Tensor, storage: torch.UntypedStorage, version: int) -> None:
    # `detach()` inside a dispatch mode has a version counter of its own: it is set on the tensor itself
    kept.untyped_storage().copy_(storage)
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def _place(lines: traceback.StackSummary) -> Place | None:
    return next((Place(at.filename, at.lineno or 0) for at in reversed(lines) if is_users(at.filename)), None)


def _listed(calls: dict[int, Any], verb: str) -> str:
    places = {rank: f"{at.file}:{at.line}" if at else "an unknown line" for rank, (*_, at) in calls.items()}
    return "; ".join(f"rank {rank} {verb} {calls[rank][0]} at {places[rank]}" for rank in sorted(calls))
