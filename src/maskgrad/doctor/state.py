"""What a run changes besides the memory of tensors, taken and put back.

Stale rows and the steps of a schedule are counted in Python; no operation shows when these counts change.
The memory of tensors is not copied here: :class:`maskgrad.doctor.modes.Guarded` sees who writes there.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from maskgrad.doctor.operations import is_users, tensors_in
from maskgrad.optim.lazy import ClosedFormTable
from maskgrad.optim.lazy.history import History
from maskgrad.optim.lazy.rows import forget_lazy_rows, lazy_rows_of

__all__ = ["State", "cuda_in_use", "objects_with_state", "referred_to", "refill"]

#: of a parameter
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_COUNTERS = (LRScheduler, torch.amp.GradScaler)


def cuda_in_use() -> range:
    """The devices that have random numbers; to ask others for theirs would initialise CUDA."""
    return range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)


def objects_with_state(*things: Any) -> tuple[list[Tensor], list[Any], list[nn.Module]]:
    """What a step and its batch refer to: leaves that a gradient may reach or with stale rows, counters, modules.

    Through closures, arguments of partial functions, attributes, containers and the global names in its code.
    """
    leaves, counters, modules = [], [], []
    seen, waiting = set[int](), list(things)
    while waiting:
        thing = waiting.pop()
        kind = type(thing)
        if id(thing) in seen or kind is ModuleType:
            continue
        seen.add(id(thing))
        if issubclass(kind, Tensor):
            if _is_leaf(thing) and (thing.requires_grad or lazy_rows_of(thing) is not None):
                leaves.append(thing)
            continue
        if issubclass(kind, _COUNTERS):
            counters.append(thing)
        elif issubclass(kind, nn.Module) and "_parameters" in vars(thing):
            modules.append(thing)
        waiting += referred_to(thing, kind)  # isinstance would wake a lazy object
    return leaves, counters, modules


#: longer containers hold data
_MOST = 10_000


def referred_to(thing: Any, kind: type) -> list[Any]:
    """What may hold state among what a thing refers to."""
    if kind is FunctionType:
        return [held for held in gc.get_referents(thing) if held is not thing.__globals__] + _global(thing)
    if issubclass(kind, type):
        functions = [held for held in vars(thing).values() if type(held) is FunctionType]
        return [held for held in functions if is_users(held.__code__.co_filename)]
    is_data = issubclass(kind, (dict, list, tuple, set)) and len(thing) > _MOST
    return [] if is_data else gc.get_referents(thing)


def _global(function: FunctionType) -> list[Any]:
    """What a function of the program names outside of itself, also in modules of the program."""
    if not is_users(function.__code__.co_filename):
        return []
    codes = [function.__code__]
    for code in codes:  # and functions inside
        codes += [held for held in code.co_consts if isinstance(held, CodeType)]
    tables = [function.__globals__]
    names = {name for code in codes for name in code.co_names}
    tables += [vars(held) for name in names if type(held := tables[0].get(name)) is ModuleType]
    return [table[name] for table in tables for name in names if name in table]


def _is_leaf(tensor: Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view of which the base was written in place, where autograd forbids that
        return False


class State:
    """What runs of a step may change besides the memory of tensors, as it is now.

    Gradients, flags and hooks of modules, states of optimizers, random numbers, and what is counted in Python.
    """

    def __init__(self, *things: Any) -> None:
        #: puts back one thing each, in this order
        self._undo: list[Callable[[], Any]] = [
            partial(torch.set_rng_state, torch.get_rng_state()),
            *(partial(torch.cuda.set_rng_state, torch.cuda.get_rng_state(at), at) for at in cuda_in_use()),
            partial(random.setstate, random.getstate()),
            partial(np.random.set_state, np.random.get_state()),  # noqa: NPY002  (the global one is meant)
        ]
        self._leaves: dict[int, Tensor] = {}
        #: rows that their own optimizer has written last, and not a load
        self._own: list[tuple[Tensor, Any]] = []
        self.modules: dict[int, nn.Module] = {}
        self._counters: list[Any] = []
        #: that have made a step
        self._optimizers: list[Any] = []
        self._keep: Callable[[Tensor], None] | None = None
        self.add(*things)

    def add(self, *things: Any) -> None:
        """Take up what was not known; in a run, before it computes a gradient."""
        if not all(id(thing) in self.modules for thing in things):
            self._take(*objects_with_state(*things))

    def as_now(self) -> State:
        """The same things as they are now; to be put back later."""
        now = State()
        now._take(self.leaves(), self._counters, self.modules.values())
        for optimizer in self._optimizers:
            now._take_optimizer(optimizer)
        return now

    def _take(self, leaves: Iterable[Tensor], counters: Iterable[Any], modules: Iterable[nn.Module]) -> None:
        counters = [*counters]
        for leaf in leaves:
            if id(leaf) in self._leaves:
                continue
            self._leaves[id(leaf)] = leaf
            self._undo.append(partial(setattr, leaf, "grad", leaf.grad))
            rows = lazy_rows_of(leaf)
            if rows is None:
                self._undo.append(partial(forget_lazy_rows, leaf))
            else:
                counters.append(rows)
                self._own += [(leaf, rows)] * (rows.version == leaf._version)
            if self._keep is not None:
                leaf.grad = None
        self._counters += counters
        for table, before in [(vars(thing), _copied(vars(thing))) for thing in counters]:
            self._undo.append(lambda table=table, before=before: refill(table, _copied(before)))  # type: ignore[misc]
        for module in modules:
            if id(module) not in self.modules:
                self.modules[id(module)] = module
                self._add_module(module)

    def _add_module(self, module: nn.Module) -> None:
        inside = vars(module)
        tables = [held for name, held in inside.items() if "hooks" in name and isinstance(held, dict)]
        self._undo += [partial(refill, table, dict(table)) for table in tables]
        self._undo.append(partial(setattr, module, "training", module.training))
        for param in inside["_parameters"].values():
            if param is not None:
                self._undo.append(partial(setattr, param, "requires_grad", param.requires_grad))
                hooks = {name: dict(getattr(param, name) or {}) for name in _HOOKS}
                self._undo.append(partial(_refill_hooks, param, hooks))

    def leaves(self) -> list[Tensor]:
        """All of which the gradient is known."""
        return list(self._leaves.values())

    @contextlib.contextmanager
    def run(self, keep: Callable[[Tensor], None]) -> Iterator[None]:
        """Inside, leaves have no gradient at first; ``keep`` is given what an optimizer writes."""
        self._keep = keep
        for leaf in self.leaves():
            leaf.grad, rows = None, lazy_rows_of(leaf)
            if rows is not None:
                rows.is_read_in_time = True  # no warning in our runs
        handle = register_optimizer_step_pre_hook(self._keep_optimizer)
        try:
            yield
        finally:
            self._keep = None
            handle.remove()

    def _keep_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if not any(optimizer is known for known in self._optimizers):
            self._take_optimizer(optimizer)
        params = [group["params"] for group in optimizer.param_groups]
        for tensor in tensors_in([params, list(optimizer.state.values())]):
            assert self._keep is not None
            self._keep(tensor)

    def _take_optimizer(self, optimizer: Any) -> None:
        self._optimizers.append(optimizer)
        states = [state for state in optimizer.state.values() if isinstance(state, dict)]
        tables = [optimizer.state, *optimizer.param_groups, *states]
        self._undo += [partial(refill, table, dict(table)) for table in tables]

    def restore(self) -> None:
        """Put everything back; random numbers are drawn again from the state of the beginning."""
        for undo in self._undo:
            undo()
        for leaf, rows in self._own:
            rows.version = leaf._version


def refill(table: dict[Any, Any], before: dict[Any, Any]) -> None:
    """Let a table have what it had before."""
    table.clear()
    table.update(before)


def _refill_hooks(param: nn.Parameter, before: dict[str, dict[Any, Any]]) -> None:
    for name, table in before.items():
        now = getattr(param, name)
        if now is not None and now.keys() != table.keys():
            refill(now, table)


def _copied(value: Any) -> Any:
    if isinstance(value, History | ClosedFormTable):
        return copy.deepcopy(value)
    if isinstance(value, dict):
        found = copy.copy(value)
        found.update((key, _copied(part)) for key, part in value.items())
        return found
    return [_copied(part) for part in value] if type(value) is list else value
