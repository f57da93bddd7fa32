"""What optimizers, schedules and averages keep beside tensors: taken, put back.

Rows that are behind are counted in Python, and so are the steps of a schedule; no operation is seen when that changes.
The memory of tensors is not copied here: :class:`maskgrad.doctor.twins.Guarded` sees who writes there.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from maskgrad.optim.averaging import ExponentialMovingAverage
from maskgrad.optim.lazy import ClosedFormTable
from maskgrad.optim.lazy.averages import LazyAverage, LazyAverages
from maskgrad.optim.lazy.history import History
from maskgrad.optim.lazy.rows import forget_lazy_rows, lazy_rows_of

__all__ = ["Bookkeeping", "Flags", "of_the_process"]

#: of a parameter
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")

_KEEPERS = (LRScheduler, torch.amp.GradScaler, ExponentialMovingAverage, LazyAverages, LazyAverage)


def of_the_process() -> tuple[list[Tensor], list[Any], list[nn.Module]]:
    """Leaves that a gradient may reach or of which rows are behind, objects that keep books, modules: all there are."""
    leaves, keepers, modules = [], [], []
    for thing in gc.get_objects():
        kind = type(thing)  # isinstance would ask a lazy object for its class, and wake it
        if issubclass(kind, Tensor):
            real = not kind.__name__.startswith("Fake") and thing.is_leaf
            if real and (thing.requires_grad or lazy_rows_of(thing) is not None):
                leaves.append(thing)
        elif issubclass(kind, _KEEPERS):
            keepers.append(thing)
        elif issubclass(kind, nn.Module) and "_parameters" in vars(thing):
            modules.append(thing)
    return leaves, keepers, modules


class Flags:
    """Whether modules train, which parameters get a gradient, and who listens to them, as it is now."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        modules = list(modules)
        self._training = [(module, module.training) for module in modules]
        params = {
            id(p): p for module in modules for p in vars(module)["_parameters"].values() if p is not None
        }
        self._wanted = [(param, param.requires_grad) for param in params.values()]
        self._hooks = [
            (table, dict(table)) for module in modules for name, table in vars(module).items()
            if name.endswith(("hooks", "hooks_with_kwargs", "hooks_always_called")) and isinstance(table, dict)
        ]  # fmt: skip
        self._of_params = [
            (p, name, dict(getattr(p, name) or {})) for p in params.values() for name in _HOOKS
        ]

    def restore(self) -> None:
        """Put everything back that is not as it was."""
        for module, training in self._training:
            if module.training is not training:
                module.training = training
        for param, wanted in self._wanted:
            if param.requires_grad is not wanted:
                param.requires_grad_(wanted)
        tables = [(getattr(param, name), before) for param, name, before in self._of_params]
        for table, before in (*self._hooks, *tables):
            if table is not None and table.keys() != before.keys():
                table.clear()
                table.update(before)


class Bookkeeping:
    """The books as they are now.

    Args:
        params: whose rows may be behind.
        keepers: objects whose attributes are numbers, lists and dicts.
    """

    def __init__(self, params: Iterable[Tensor], keepers: Iterable[Any]) -> None:
        self._rows = [(param, lazy_rows_of(param)) for param in params]
        rows = [lazy for _, lazy in self._rows if lazy is not None]
        self._before = [(keeper, _copied(vars(keeper))) for keeper in (*keepers, *rows)]
        # what a step writes counts as its own, and what is loaded later as somebody else's
        self._own = [(p, lazy) for p, lazy in self._rows if lazy is not None and lazy.version == p._version]

    def warn_of_late_reads(self, wanted: bool) -> None:
        """Let a step warn of rows that are read before they are up to date, also if it did; or let no step do so."""
        for _, lazy in self._rows:
            if lazy is not None:
                lazy.is_read_in_time = not wanted

    def restore(self) -> None:
        """Put everything back."""
        for param, lazy in self._rows:
            if lazy is None:
                forget_lazy_rows(param)
        for keeper, before in self._before:
            vars(keeper).clear()
            vars(keeper).update(before)
        for param, lazy in self._own:
            lazy.version = param._version


def _copied(value: Any) -> Any:
    if isinstance(value, History | ClosedFormTable):
        return copy.deepcopy(value)
    if isinstance(value, dict):
        found = copy.copy(value)
        found.update((key, _copied(part)) for key, part in value.items())
        return found
    return [_copied(part) for part in value] if type(value) is list else value
