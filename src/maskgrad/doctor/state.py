"""What a run changes besides the memory of tensors, taken and put back.

Stale rows and the steps of a schedule are counted in Python; no operation shows when these counts change.
The memory of tensors is not copied here: :class:`maskgrad.doctor.modes.Guarded` sees who writes there.
"""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from maskgrad.doctor.operations import tensors_in
from maskgrad.optim.lazy import ClosedFormTable
from maskgrad.optim.lazy.history import History
from maskgrad.optim.lazy.rows import forget_lazy_rows, lazy_rows_of

__all__ = [
    "ModuleState", "RunState", "all_random_states", "objects_with_state", "random_state", "set_all_random_states",
    "set_random_state",
]  # fmt: skip

#: of a parameter
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_COUNTERS = (LRScheduler, torch.amp.GradScaler)


def random_state(generator: torch.Generator | None = None) -> Any:
    """The state of a generator, or of those of all devices in use."""
    if generator is not None:
        return generator.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.get_rng_state(), torch.cuda.get_rng_state_all()
    return torch.get_rng_state(), None


def set_random_state(state: Any, generator: torch.Generator | None = None) -> None:
    """Put back what :func:`random_state` gave."""
    if generator is not None:
        generator.set_state(state)
        return
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state_all(state[1])


def all_random_states() -> Any:
    """The states of PyTorch, Python and numpy."""
    return random_state(), random.getstate(), np.random.get_state()  # noqa: NPY002  (the global one is meant)


def set_all_random_states(states: Any) -> None:
    """Put back what :func:`all_random_states` gave."""
    set_random_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])  # noqa: NPY002


def objects_with_state() -> tuple[list[Tensor], list[Any], list[nn.Module]]:
    """Of the whole process: leaves that a gradient may reach or with stale rows, counters, modules."""
    leaves, counters, modules = [], [], []
    things = gc.get_objects()
    # by type, of which there are few; isinstance would ask a lazy object for its class, and wake it
    kinds = {kind for kind in set(map(type, things)) if issubclass(kind, (Tensor, nn.Module, *_COUNTERS))}
    for thing in [thing for thing in things if type(thing) in kinds]:
        kind = type(thing)
        if issubclass(kind, Tensor):
            real = not kind.__name__.startswith("Fake") and _is_leaf(thing)
            if real and (thing.requires_grad or lazy_rows_of(thing) is not None):
                leaves.append(thing)
        elif issubclass(kind, _COUNTERS):
            counters.append(thing)
        elif "_parameters" in vars(thing):
            modules.append(thing)
    return leaves, counters, modules


def _is_leaf(tensor: Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view of which the base was written in place, where autograd forbids that
        return False


class ModuleState:
    """Whether modules train, which parameters require a gradient, and their hooks, as it is now."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._training: dict[int, tuple[nn.Module, bool]] = {}
        self._requires_grad: dict[int, tuple[nn.Parameter, bool]] = {}
        self._hooks: list[tuple[Any, dict[Any, Any]]] = []
        self._of_params: list[tuple[nn.Parameter, str, dict[Any, Any]]] = []
        self.add(modules)

    def add(self, modules: Iterable[nn.Module]) -> None:
        """Modules that were not known."""
        new = [module for module in modules if id(module) not in self._training]
        self._training |= {id(module): (module, module.training) for module in new}
        params = {id(p): p for module in new for p in vars(module)["_parameters"].values() if p is not None}
        params = {key: p for key, p in params.items() if key not in self._requires_grad}
        self._requires_grad |= {key: (param, param.requires_grad) for key, param in params.items()}
        self._hooks += [
            (table, dict(table)) for module in new for name, table in vars(module).items()
            if name.endswith(("hooks", "hooks_with_kwargs", "hooks_always_called")) and isinstance(table, dict)
        ]  # fmt: skip
        self._of_params += [
            (p, name, dict(getattr(p, name) or {})) for p in params.values() for name in _HOOKS
        ]

    def restore(self) -> None:
        """Put everything back that is not as it was."""
        for module, training in self._training.values():
            if module.training is not training:
                module.training = training
        for param, requires_grad in self._requires_grad.values():
            if param.requires_grad is not requires_grad:
                param.requires_grad_(requires_grad)
        tables = [(getattr(param, name), before) for param, name, before in self._of_params]
        for table, before in (*self._hooks, *tables):
            if table is not None and table.keys() != before.keys():
                _refill(table, before)


class RunState:
    """What one run may change: gradients, states of optimizers, and what is counted in Python.

    Args:
        leaves: that may get a gradient, or have stale rows.
        counters: objects whose attributes are numbers, lists and dicts.
        keep: keeps the memory of a tensor that an optimizer writes.
        sees_late_reads: whether the run looks for reads of stale rows.
    """

    def __init__(
        self,
        leaves: list[Tensor],
        counters: Iterable[Any],
        keep: Callable[[Tensor], None],
        *,
        sees_late_reads: bool,
    ) -> None:
        self._keep = keep
        self._gradients = [(leaf, leaf.grad) for leaf in leaves]
        self._lazy = [(leaf, lazy_rows_of(leaf)) for leaf in leaves]
        rows = [(leaf, lazy) for leaf, lazy in self._lazy if lazy is not None]
        self._attributes = [
            (vars(thing), _copied(vars(thing))) for thing in (*counters, *(lazy for _, lazy in rows))
        ]
        # what a step writes counts as its own, and what is loaded later as somebody else's
        self._own = [(leaf, lazy) for leaf, lazy in rows if lazy.version == leaf._version]
        for _, lazy in rows:  # also if the step has warned before
            lazy.is_read_in_time = not sees_late_reads
        #: of each optimizer that makes a step: states and groups, the objects themselves and what was in them
        self._optimizers: dict[int, list[tuple[Any, dict[Any, Any]]]] = {}

    def leaves(self) -> list[Tensor]:
        """All of which the gradient is known."""
        return [leaf for leaf, _ in self._gradients]

    def add_leaves(self, leaves: list[Tensor]) -> None:
        """Leaves that the step made itself: they had no gradient before."""
        known = {id(leaf) for leaf in self.leaves()}
        self._gradients += [(leaf, None) for leaf in leaves if id(leaf) not in known]

    def put_aside(self, leaves: list[Tensor]) -> None:
        """Gradients of leaves that become known during a run, before it computes any."""
        self._gradients += [(leaf, leaf.grad) for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None

    def __enter__(self) -> None:
        for leaf, gradient in self._gradients:
            if gradient is not None:
                leaf.grad = None
        self._handle = register_optimizer_step_pre_hook(self._keep_optimizer)

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def _keep_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        if id(optimizer) in self._optimizers:
            return
        states = [state for state in optimizer.state.values() if isinstance(state, dict)]
        tables = [optimizer.state, *optimizer.param_groups, *states]
        self._optimizers[id(optimizer)] = [(table, dict(table)) for table in tables]
        params = [group["params"] for group in optimizer.param_groups]
        for tensor in tensors_in([params, list(optimizer.state.values())]):
            self._keep(tensor)

    def restore(self) -> None:
        """Put everything back."""
        for leaf, gradient in self._gradients:
            leaf.grad = gradient
        for tables in self._optimizers.values():
            for table, before in tables:
                _refill(table, before)
        for leaf, lazy in self._lazy:
            if lazy is None:
                forget_lazy_rows(leaf)
        for attributes, before in self._attributes:
            _refill(attributes, before)
        for leaf, lazy in self._own:
            lazy.version = leaf._version


def _refill(table: dict[Any, Any], before: dict[Any, Any]) -> None:
    table.clear()
    table.update(before)


def _copied(value: Any) -> Any:
    if isinstance(value, History | ClosedFormTable):
        return copy.deepcopy(value)
    if isinstance(value, dict):
        found = copy.copy(value)
        found.update((key, _copied(part)) for key, part in value.items())
        return found
    return [_copied(part) for part in value] if type(value) is list else value
