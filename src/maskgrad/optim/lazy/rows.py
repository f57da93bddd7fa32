"""Rows of a parameter that are behind because a missing gradient counts as zero, and how they are brought up to date.

A dense optimizer moves every row at every step. Here a row is moved when it is next stepped or read: a
:class:`LazyRows` object, kept by the parameter itself, knows the steps there were and which of them each row has
had. Its cost:

- memory: an int32 per row of the parameter, allocated with the first step that leaves rows behind; a history whose
  length is bounded, for after ``_MOST_STEPS`` steps (or as many changes of hyperparameters) everything is brought
  up to date, which costs one pass over the parameter in that many steps;
- a step: the rows of the gradient, looked up in a table of closed forms (``linear.py``, ``moments.py``) or replayed
  (``replay.py``), and the composition of the table with this step;
- steps that would change nothing at all (SGD and Adagrad without decay and momentum) are not even counted.

Rows are those of the gradient: single entries if it lists single entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.gradients.train_only import trained_entries
from maskgrad.optim.lazy.access import RowAccess, computing_dtype
from maskgrad.optim.lazy.history import History
from maskgrad.optim.lazy.replay import replay_
from maskgrad.optim.lazy.table import IdleTable
from maskgrad.optim.rule import Hyperparameters, Update
from maskgrad.sparse import places, prod

__all__ = ["LazyRows", "begin_lazy_rows", "forget_lazy_rows", "lazy_rows_of", "release"]

_ATTRIBUTE = "_maskgrad_lazy_rows"
_MOST_STEPS = 1 << 14
_PIECE = 1 << 18  # entries that are brought up to date at a time: their copies stay in the cache


class LazyRows:
    """The steps that rows of one parameter have missed."""

    def __init__(self, leading: int) -> None:
        self.leading = leading
        self.states: list[Tensor] = []
        self.version = 0
        """Version of the parameter after the last step: whether somebody else has written since."""
        self.is_read_in_time = False
        """Whether somebody brings rows up to date before they are read: a table of ``mg.nn``."""
        self._had: Tensor | None = None  # (R,) int32: how many of the recorded steps a row has had
        self._history = History()
        self._table: IdleTable | None = None
        self._valid_from = 0  # rows that have had fewer steps cannot use the table
        self._steps = 0

    def __len__(self) -> int:
        return self._steps

    def __reduce__(self) -> Any:
        # A parameter without rows that are behind is saved without the optimizer's states.
        return (LazyRows, (self.leading,), None if self._steps == 0 else self.__dict__.copy())

    @property
    def is_long(self) -> bool:
        """Whether it is time to bring everything up to date."""
        recorded = self._steps if self._table is not None else self._history.runs
        return recorded >= _MOST_STEPS or self._steps >= 2**31 - 2

    def adopt(self, param: Tensor, states: Sequence[Tensor]) -> None:
        """Work on ``states`` from now on; rows that are behind are brought up to date with the ones before."""
        if len(states) != len(self.states) or any(
            a is not b for a, b in zip(states, self.states, strict=True)
        ):
            self.flush(param)
            self.states = list(states)

    def behind(self, rows: Tensor) -> Tensor:
        """Those of ``rows`` that are not up to date."""
        return rows[:0] if self._had is None else rows[self._had[rows] != self._steps]

    def record(
        self, numbers: Hyperparameters, step: float, before: Mapping[str, Tensor], update: Update
    ) -> bool:
        """Count one step, whose scalar states were ``before``; False if it changes no idle row, and is not counted."""
        idle = update.idle(len(self.states))
        if idle is not None and idle.changes_nothing():
            return False
        if idle is None:
            self._table = None
        else:
            if self._table is None or not self._table.fits(idle):
                precision = torch.finfo(computing_dtype(self.states[0]) if self.states else torch.float64).eps
                self._table = idle.new_table(len(self.states), precision)
                self._valid_from = self._steps
            self._table.append(idle)
        self._history.append(numbers, step, before)
        self._steps += 1
        return True

    def mark(self, param: Tensor, rows: Tensor) -> None:
        """``rows`` have had every step so far."""
        if self._had is None:
            number = prod(param.shape[: self.leading])
            self._had = torch.zeros(number, dtype=torch.int32, device=param.device)
        self._had[rows] = self._steps

    def fit_rows(self, param: Tensor, leading: int) -> None:
        """Count by finer rows from now on, if those of the first ``leading`` dimensions are finer."""
        if self._steps == 0 and leading != self.leading:
            self._had = None
        elif leading <= self.leading:
            return
        if self._had is not None:
            self._had = self._had.repeat_interleave(prod(param.shape[self.leading : leading]))
        self.leading = leading

    def forget(self) -> None:
        """No row is behind."""
        self._history.clear()
        self._table, self._valid_from, self._steps = None, 0, 0
        if self._had is not None:
            self._had.zero_()

    def flush(self, param: Tensor) -> None:
        """Bring every row up to date."""
        if self._steps == 0:
            return
        if self._had is not None:
            self.catch_up(param, (self._had != self._steps).nonzero().view(-1))
        self.forget()

    def catch_up(self, param: Tensor, rows: Tensor) -> bool:
        """Bring distinct ``rows`` (n,) up to date, and say whether some were not.

        The parameter's version does not change, for its value does not.
        """
        if self._steps == 0 or len(rows) == 0:
            return False
        assert self._had is not None  # a step was recorded, so its rows were marked
        rows = self.behind(rows)
        if len(rows) == 0:
            return False
        access = RowAccess([param.data, *self.states], self.leading)
        mask = trained_entries(param)
        for piece in access.pieces(rows, _PIECE):
            had = self._had[piece].long()
            tensors = access.gather(piece)
            frozen = None if mask is None else _frozen(mask, tensors, access, piece)
            self._advance(tensors, had)
            if frozen is not None:
                tensors = [torch.where(on, t, old) for t, (old, on) in zip(tensors, frozen, strict=True)]
            access.scatter(piece, tensors)
        self.mark(param, rows)
        return True

    def _advance(self, tensors: Sequence[Tensor], had: Tensor) -> None:
        if self._table is None:
            replay_(tensors, had, self._history)
            return
        old = had < self._valid_from
        if self._valid_from == 0 or not bool(old.any()):
            self._table.apply_(tensors, had - self._valid_from)
            return
        for which, closed in ((old.nonzero().view(-1), False), ((~old).nonzero().view(-1), True)):
            if len(which) == 0:
                continue
            part = [t[which] for t in tensors]
            if closed:
                self._table.apply_(part, had[which] - self._valid_from)
            else:
                replay_(part, had[which], self._history)
            for t, computed in zip(tensors, part, strict=True):
                t[which] = computed


def _frozen(
    mask: Tensor, tensors: Sequence[Tensor], access: RowAccess, rows: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Each tensor as it is, and where it may change: entries outside ``mg.train_only`` never do."""
    trained = mask[tuple(places(rows, access.sizes))]
    found = []
    for t in tensors:
        where = trained.unsqueeze(-1) if t.dim() > trained.dim() else trained
        found.append((t.clone(), where))
    return found


def lazy_rows_of(param: Tensor) -> LazyRows | None:
    """Which rows of ``param`` are behind, or None: none ever was."""
    return param.__dict__.get(_ATTRIBUTE)


def begin_lazy_rows(param: Tensor, leading: int) -> LazyRows:
    """Count the steps that rows of ``param``, those of its first ``leading`` dimensions, have had."""
    lazy = LazyRows(leading)
    setattr(param, _ATTRIBUTE, lazy)
    return lazy


def forget_lazy_rows(param: Tensor) -> None:
    """Whatever steps its rows have missed, none is owed."""
    param.__dict__.pop(_ATTRIBUTE, None)


def release(param: Tensor) -> None:
    """Forget a parameter without rows that are behind: it is about to change its device or dtype."""
    lazy = lazy_rows_of(param)
    if lazy is not None and len(lazy) == 0:
        forget_lazy_rows(param)
