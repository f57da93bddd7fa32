"""Rows with pending updates, because a missing gradient counts as zero, and applying these updates.

A dense optimizer updates every row at every step. Here a row is updated when it is next stepped or read: a
:class:`LazyRows` object, an attribute of the parameter, records all steps, and those applied to each row. Its cost:

- memory: an int32 per row of the parameter, allocated in the first step with pending rows, and a history of
  bounded length: after ``_MOST_STEPS`` steps (or as many changes of hyperparameters) all rows are updated,
  which costs one pass over the parameter in that many steps; so does a change from one closed form to another;
- in each step: the rows of the gradient, looked up in a table of closed forms (``linear.py``, ``moments.py``) or
  replayed (``history.py``), and the composition of the table with this step;
- steps that would change nothing (SGD and Adagrad without decay and momentum) are not counted.

Rows are those of the gradient: single entries if it contains single entries.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from maskgrad.gradients.train_only import trained_entries
from maskgrad.masked_tensor.torch_patches.modules import before_saving
from maskgrad.optim.engine import RowAccess, computing_dtype
from maskgrad.optim.lazy import ClosedFormTable
from maskgrad.optim.lazy.history import History, replay_
from maskgrad.optim.rule import Hyperparameters, Update
from maskgrad.sparse import finer_rows, places

__all__ = ["LazyRows", "bring_up_to_date", "flush", "forget_lazy_rows", "lazy_rows_of", "prepare_loading"]

ATTRIBUTE = "_maskgrad_lazy_rows"
_MOST_STEPS = 1 << 14
_PIECE = 1 << 18  # entries that are updated at a time: their copies stay in the cache


class LazyRows:
    """The pending steps of the rows of one parameter."""

    def __init__(self, leading: int) -> None:
        self.leading = leading
        self.states: list[Tensor] = []
        self.version = 0
        """Version of the parameter after the last step; another one means that it was modified since."""
        self.is_read_in_time = False
        """Whether rows are updated before they are read, as tables of ``mg.nn`` do."""
        self._had: Tensor | None = None  # (R,) int32: number of recorded steps applied to a row
        self._history = History()
        self._table: ClosedFormTable | None = None
        self._steps = 0

    def __len__(self) -> int:
        return self._steps

    def __reduce__(self) -> Any:
        # A parameter without pending rows is saved without the optimizer's states.
        return (LazyRows, (self.leading,), None if self._steps == 0 else self.__dict__.copy())

    @property
    def is_long(self) -> bool:
        """Return whether all rows should be updated now."""
        recorded = self._steps if self._table is not None else self._history.runs
        return recorded >= _MOST_STEPS or self._steps >= 2**31 - 2

    def adopt(self, param: Tensor, states: Sequence[Tensor]) -> None:
        """Use ``states`` from now on; pending rows are updated with the previous ones first."""
        if len(states) != len(self.states) or not all(map(operator.is_, states, self.states)):
            self.flush(param)
            self.states = list(states)

    def behind(self, rows: Tensor) -> Tensor:
        """Those of ``rows`` with pending updates."""
        return rows[:0] if self._had is None else rows[self._had[rows] != self._steps]

    def record(
        self,
        param: Tensor,
        numbers: Hyperparameters,
        step: float,
        before: Mapping[str, Tensor],
        update: Update,
    ) -> bool:
        """Count one step, whose scalar states were ``before``; return False if it changes no other row, uncounted."""
        closed_form = update.closed_form(len(self.states))
        if closed_form is not None and closed_form.changes_nothing():
            return False
        if closed_form is not None if self._table is None else not self._table.fits(closed_form):
            self.flush(param)  # a table or a history is of one kind of steps
        if closed_form is None:
            self._history.append(numbers, step, before)
        else:
            if self._table is None:
                precision = torch.finfo(computing_dtype(self.states[0]) if self.states else torch.float64).eps
                self._table = closed_form.new_table(len(self.states), precision)
            self._table.append(closed_form)
        self._steps += 1
        return True

    def mark(self, param: Tensor, rows: Tensor) -> None:
        """Mark ``rows`` as up to date."""
        if self._had is None:
            number = prod(param.shape[: self.leading])
            self._had = torch.zeros(number, dtype=torch.int32, device=param.device)
        self._had[rows] = self._steps

    def fit_rows(self, param: Tensor, leading: int) -> None:
        """Use finer rows from now on, if those of the first ``leading`` dimensions are finer."""
        if self._steps == 0 and leading != self.leading:
            self._had = None
        elif leading <= self.leading:
            return
        if self._had is not None:
            self._had = self._had.repeat_interleave(prod(param.shape[self.leading : leading]))
        self.leading = leading

    def forget(self) -> None:
        """Drop all pending updates."""
        self._history.clear()
        self._table, self._steps = None, 0
        if self._had is not None:
            self._had.zero_()

    def flush(self, param: Tensor) -> None:
        """Update all rows."""
        if self._steps == 0:
            return
        if self._had is not None:
            self.catch_up(param, (self._had != self._steps).nonzero().view(-1))
        self.forget()

    def catch_up(self, param: Tensor, rows: Tensor) -> bool:
        """Update distinct ``rows`` (n,); return whether any were pending. The version does not change."""
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
            before = [] if mask is None else [t.clone() for t in tensors]
            if self._table is None:
                replay_(tensors, had, self._history)
            else:
                self._table.apply_(tensors, had)
            if mask is not None:  # entries outside mg.train_only do not change
                trained = mask[tuple(places(piece, access.sizes))]
                for t, old in zip(tensors, before, strict=True):
                    changed = trained.unsqueeze(-1) if t.dim() > trained.dim() else trained
                    torch.where(changed, t, old, out=t)
            access.scatter(piece, tensors)
        self.mark(param, rows)
        return True


def lazy_rows_of(param: Tensor) -> LazyRows | None:
    """The pending rows of ``param``, or None if it never had any."""
    return getattr(param, ATTRIBUTE, None)


def forget_lazy_rows(param: Tensor) -> None:
    """Mark its rows as up to date, dropping pending steps."""
    param.__dict__.pop(ATTRIBUTE, None)


def _settle(param: Tensor) -> None:
    """Update all rows and stop tracking a parameter, whose copies, files and conversions have its values only."""
    bring_up_to_date(param)
    forget_lazy_rows(param)


@torch.no_grad()
def bring_up_to_date(param: Tensor, rows: Tensor | None = None) -> None:
    """Update ``rows`` of ``param`` (indices in its first dimension, duplicates allowed), or all."""
    lazy = lazy_rows_of(param)
    if lazy is None:
        return
    lazy.is_read_in_time |= rows is not None
    if len(lazy) == 0:
        return
    if rows is None:
        lazy.flush(param)
        return
    rows = rows.reshape(-1).long()
    if len(rows) == 0 or bool((rows.amin() < 0) | (rows.amax() >= param.shape[0])):
        return  # the lookup raises
    if lazy.leading == 1:
        rows = lazy.behind(rows)
    lazy.catch_up(param, finer_rows(rows.unique(), param.shape, 1, lazy.leading))


def prepare_loading(param: Tensor) -> None:
    """Prepare for loading other states: update rows, or drop their pending updates.

    If the parameter was modified since the last step (most likely by a checkpoint), its pending updates
    are void.
    """
    lazy = lazy_rows_of(param)
    if lazy is None:
        return
    if param._version == lazy.version:
        lazy.flush(param)
    else:
        lazy.forget()


@torch.no_grad()
def flush(params: torch.nn.Module | Tensor | Iterable[Tensor]) -> None:
    r"""Apply pending updates of parameters stepped with ``unspecified="zero"``, without their optimizer.

    .. math:: \theta, s \leftarrow u_n(\cdots u_{k+1}(\theta, s; 0) \cdots; 0)

    for a row whose last update was the k-th of n, :math:`u_i` being the update of step i and s its states.

    Args:
        params: a module, a parameter or several; those without pending updates are not changed.

    Gradient:
        None; nothing is recorded for autograd, and the parameters' versions do not change.

    Raises:
        TypeError: something among ``params`` is not a tensor.

    Dense equivalent: nothing; a dense optimizer is always up to date.

    Example:
        >>> p = torch.nn.Parameter(torch.ones(3, 1))
        >>> optimizer = mg.optim.SGD([p], lr=1.0, weight_decay=0.5, unspecified="zero")
        >>> p.grad = torch.sparse_coo_tensor([[0]], torch.zeros(1, 1), (3, 1))
        >>> optimizer.step()
        >>> del optimizer
        >>> mg.optim.flush(p)
        >>> p.data.view(-1)
        tensor([0.5000, 0.5000, 0.5000])

    Source: lazy regularisation of linear models, such as ``apply_l2_reg``; here exact, for every optimizer.
    """
    if isinstance(params, torch.nn.Module):
        params = params.parameters()
    for param in [params] if isinstance(params, Tensor) else params:
        if not isinstance(param, Tensor):
            raise TypeError(f"params must be a module, a parameter or several, got a {type(param).__name__}")
        bring_up_to_date(param)


before_saving(_settle)
