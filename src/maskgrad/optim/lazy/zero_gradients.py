"""A step in which missing gradients are zero: only rows with a gradient are updated and stepped."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from torch import Tensor

from maskgrad.gradients.gradient import Gradient
from maskgrad.gradients.train_only import trained_entries
from maskgrad.optim.engine import apply_update, computing_dtype
from maskgrad.optim.lazy.rows import ATTRIBUTE, LazyRows, lazy_rows_of
from maskgrad.optim.rule import Hyperparameters, Update
from maskgrad.sparse import finer_rows

__all__ = ["RowsReadLate", "update_with_zeros"]

READ_LATE = (
    'with unspecified="zero", rows of {name}, a {type} of shape {shape}, were read before their pending updates were '
    "applied: their gradients use stale values. Use mg.nn.Embedding or mg.nn.EmbeddingBag, which update rows before "
    "they are read, or call mg.optim.flush(param) before each forward pass, and before you save or "
    "average param.detach()"
)


class RowsReadLate(UserWarning):
    """Gradients of ``param`` were computed from stale values; ``name``: its name in the optimizer or module."""

    def __init__(self, param: Tensor, name: str) -> None:
        super().__init__(READ_LATE.format(name=name, type=type(param).__name__, shape=tuple(param.shape)))
        self.param = param


def update_with_zeros(
    update: Update,
    param: Tensor,
    gradient: Gradient,
    states: Sequence[Tensor],
    numbers: Hyperparameters,
    step: float,
    before: Mapping[str, Tensor],
    name: str,
) -> None:
    """One update in which an entry without a gradient has gradient zero; rows without any are deferred.

    ``update`` is ``numbers.update(step, **before)``.
    """
    lazy = lazy_rows_of(param)
    mask = trained_entries(param)
    per_row = any(state.shape != param.shape for state in states)
    # A state per row needs whole rows, and all of their entries.
    if (
        gradient.rows is None
        or gradient.leading == 0
        or (per_row and (mask is not None or gradient.leading > 1))
    ):
        if lazy is not None:
            if gradient.rows is None and not lazy.is_read_in_time and len(lazy) > 0:
                entries = gradient.values.unsqueeze(-1).flatten(lazy.leading).flatten(0, -2)
                got = entries.any(1).nonzero().view(-1)
                if len(lazy.behind(got)) > 0:
                    _warn_of_late_read(lazy, param, name)
            lazy.flush(param)
        apply_update(update, param, _everywhere(gradient, param, mask), states)
        return
    if lazy is None:
        lazy = LazyRows(gradient.leading)
        setattr(param, ATTRIBUTE, lazy)
    lazy.adopt(param, states)
    gradient = _merged(gradient, param)
    lazy.fit_rows(param, gradient.leading)
    assert gradient.rows is not None
    rows = finer_rows(gradient.rows, param.shape, gradient.leading, lazy.leading)
    if lazy.catch_up(param, rows) and not lazy.is_read_in_time:
        _warn_of_late_read(lazy, param, name)
    apply_update(update, param, gradient, states)
    if lazy.record(param, numbers, step, before, update):
        lazy.mark(param, rows)
    lazy.version = param._version
    if lazy.is_long:
        lazy.flush(param)


def _warn_of_late_read(lazy: LazyRows, param: Tensor, name: str) -> None:
    lazy.is_read_in_time = True  # once is enough
    warnings.warn(RowsReadLate(param, name), stacklevel=3)


def _merged(gradient: Gradient, param: Tensor) -> Gradient:
    """Each row once, ascending; half precision is added in float32."""
    dtype = param.dtype if param.is_complex() else computing_dtype(param)
    return gradient.with_values(gradient.values.to(dtype)).merged()


def _everywhere(gradient: Gradient, param: Tensor, mask: Tensor | None) -> Gradient:
    """The gradient with zeros where unspecified, except for entries outside ``mask``."""
    merged = gradient if gradient.rows is None else _merged(gradient, param)
    return Gradient(merged.whole(), param.shape, mask)
