"""A step in which a missing gradient is a zero: rows that have one are caught up and stepped, the others wait."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from torch import Tensor

from maskgrad import kernels
from maskgrad.gradients.train_only import trained_entries
from maskgrad.optim.engine import apply_update
from maskgrad.optim.gradients import Dense, Gradient, Masked, Rows, Slots
from maskgrad.optim.lazy.access import computing_dtype, finer_rows
from maskgrad.optim.lazy.rows import begin_lazy_rows, lazy_rows_of
from maskgrad.optim.rule import Hyperparameters, Update
from maskgrad.sparse import increasing, prod

__all__ = ["update_with_zeros"]

READ_LATE = (
    'with unspecified="zero", rows of a {type} of shape {shape} were read while they were behind: their gradients are '
    "those of old values. Look them up with mg.nn.Embedding or mg.nn.EmbeddingBag, which bring rows up to date when "
    "they are read, or call mg.optim.flush(param) before each forward pass"
)


def update_with_zeros(
    update: Update,
    param: Tensor,
    gradient: Gradient,
    states: Sequence[Tensor],
    numbers: Hyperparameters,
    step: float,
    before: Mapping[str, Tensor],
) -> None:
    """One update in which an entry without a gradient has gradient zero; rows without any are left for later.

    ``update`` is ``numbers.update(step, **before)``.
    """
    lazy = lazy_rows_of(param)
    mask = trained_entries(param)
    per_row = any(state.shape != param.shape for state in states)
    if (
        not isinstance(gradient, Rows)
        or gradient.leading == 0
        or update.whole
        or (mask is not None and per_row)
    ):
        if lazy is not None:
            lazy.flush(param)
        apply_update(update, param, _everywhere(gradient, param, mask), states)
        return
    if lazy is None:
        lazy = begin_lazy_rows(param, gradient.leading)
    lazy.adopt(param, states)
    gradient = _merged(gradient, param)
    if per_row and gradient.leading > 1:
        gradient = _whole_rows(gradient, param)
    lazy.fit_rows(param, gradient.leading)
    rows = finer_rows(gradient.indices, param, gradient.leading, lazy.leading)
    if lazy.catch_up(param, rows) and not lazy.is_read_in_time:
        lazy.is_read_in_time = True  # once is enough
        warnings.warn(
            READ_LATE.format(type=type(param).__name__, shape=tuple(param.shape)), UserWarning, stacklevel=2
        )
    apply_update(update, param, gradient, states)
    if lazy.record(numbers, step, before, update):
        lazy.mark(param, rows)
    lazy.version = param._version
    if lazy.is_long:
        lazy.flush(param)


def _merged(gradient: Rows, param: Tensor) -> Rows:
    """Each row once, ascending; halves are added in float32."""
    indices, values = gradient.indices, gradient.values
    values = values.to(param.dtype if param.is_complex() else computing_dtype(param))
    if not increasing(indices):
        number = prod(param.shape[: gradient.leading])
        indices, values = kernels.merge_rows(indices, values, number, "sum")
    return Rows(indices, values, gradient.leading, gradient.mask)


def _whole_rows(gradient: Rows, param: Tensor) -> Rows:
    """Pieces of rows completed with zeros: an accumulator per row looks at whole rows."""
    parts = prod(param.shape[1 : gradient.leading])
    first = gradient.indices.div(parts, rounding_mode="floor")
    rows, position = first.unique(return_inverse=True)
    values = gradient.values.new_zeros(len(rows), parts, *gradient.values.shape[1:])
    values[position, gradient.indices % parts] = gradient.values
    return Rows(rows, values.view(len(rows), *param.shape[1:]), 1)


def _everywhere(gradient: Gradient, param: Tensor, mask: Tensor | None) -> Gradient:
    """The gradient with zeros where it is unspecified, but for entries outside ``mask``."""
    if isinstance(gradient, Rows):
        merged = _merged(gradient, param)
        values = merged.values.new_zeros(prod(param.shape[: merged.leading]), *merged.values.shape[1:])
        values.index_add_(0, merged.indices, merged.values)
        values = values.view(param.shape)
    elif isinstance(gradient, Slots):
        values = gradient.values.new_zeros(len(param) + 1, *param.shape[1:])
        values = values.index_add(0, gradient.indices, gradient.values)[:-1]
    else:
        values = gradient.values
    return Dense(values) if mask is None else Masked(values, mask)
