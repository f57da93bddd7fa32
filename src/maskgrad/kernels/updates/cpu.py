r"""One optimizer step on the rows of a table that have a gradient: merge and update, in one pass.

The formulas are those of the reference. Indices are sorted first (see ``sorting.py``), so each touched row belongs to
one task and is read and written once; merged gradients never reach memory. The rows of a large table lie at places that
the processor cannot predict, so they are prefetched: half the time for 262,144 rows of
a 10^6 x 64 table. An index outside the table is found before anything is written. Half-precision parameters and rows
with gaps are left to the reference.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from maskgrad.kernels import updates as family
from maskgrad.kernels.cpu.compiler import array
from maskgrad.kernels.cpu.sorting import Runs, fits, runs
from maskgrad.kernels.cpu.threads import run
from maskgrad.kernels.updates import cpu_loops as loops


def _update(name: str, *tensors: Tensor | None, first_step: Tensor | None = None, **numbers: Any) -> None:
    """Make the implementation of a kernel: ``tensors`` are parameter, states, indices and values."""
    *tables, indices, values = tensors
    if name in ("sgd_rows_", "rmsprop_rows_") and not numbers.get("momentum"):
        tables[-1] = None  # the buffer
    marks = None if tables[-1] is None else first_step
    fits = first_step is None or first_step.is_contiguous()
    if fits and update_table(name, tables, indices, values, marks=marks, **numbers):  # type: ignore[arg-type]
        return
    if first_step is not None:
        numbers["first_step"] = first_step
    getattr(family, name).reference(*tensors, **numbers)


sgd_rows_, adagrad_rows_, rowwise_adagrad_rows_, adam_rows_, rmsprop_rows_ = (
    functools.partial(_update, name)
    for name in ("sgd_rows_", "adagrad_rows_", "rowwise_adagrad_rows_", "adam_rows_", "rmsprop_rows_")
)


def update_table(
    name: str,
    tables: Sequence[Tensor | None],
    indices: Tensor,
    values: Tensor,
    marks: Tensor | None = None,
    **numbers: Any,
) -> bool:
    """As :func:`maskgrad.kernels.update_table_`, with ``first_step`` in ``marks``; False if the loops do not fit."""
    param = tables[0]
    assert param is not None
    if not _fits(tables, values, len(param)):
        return False
    found = runs(indices, len(param))
    gradient = values.detach().to(param.dtype).reshape(-1).contiguous()
    ready = prepared(tables)
    update_prepared(ready, found, array(gradient), *bound(name, ready, marks, **numbers))
    return True


class Table(NamedTuple):
    """The memory of a table and its states: arguments of the loops that do not change between steps."""

    bases: Any
    width: int
    dtype: torch.dtype
    present: tuple[bool, ...]


def prepared(tables: Sequence[Tensor | None]) -> Table:
    """A parameter and its states, or None for those that are not used, all contiguous."""
    param: Any = tables[0]
    # Numba compiles one version for arrays and one for None: the parameter replaces a state that is not used.
    bases = [(param if t is None else t).data_ptr() for t in tables]
    present = tuple(t is not None for t in tables[1:])
    return Table(np.array(bases, np.int64), math.prod(param.shape[1:]), param.dtype, present)


def bound(
    name: str, table: Table, marks: Tensor | None = None, **numbers: Any
) -> tuple[Any, tuple[Any, ...]]:
    """The loop of a kernel, and its last arguments: the scalars in the type of the table."""
    number: Any = np.float32 if table.dtype == torch.float32 else np.float64
    arguments = (*map(number, family.scalars(name, numbers)), *table.present[_REQUIRED.get(name, 1) :])
    if name == "sgd_rows_":
        fresh = _NO_MARKS if marks is None else array(marks)
        arguments = (fresh, *arguments, bool(numbers.get("nesterov")))
    return getattr(loops, name.removesuffix("_rows_")), arguments


def update_prepared(table: Table, found: Runs, gradient: Any, loop: Any, arguments: tuple[Any, ...]) -> None:
    """Update the rows in ``found``; ``gradient`` is a 1-D array of the dtype of the table."""
    number = len(found.rows)
    run(
        loop, table.bases, found.rows, gradient, found.keys, found.places, found.starts, table.width,
        *arguments, tasks=number, elements=3 * table.width * len(found.keys),
    )  # fmt: skip


_NO_MARKS = np.empty(0, np.uint8)
#: Number of states that a rule requires; its loop gets flags for the others.
_REQUIRED = {"sgd_rows_": 0, "adam_rows_": 2}


def _fits(tables: Sequence[Tensor | None], values: Tensor, height: int) -> bool:
    dtype = tables[0].dtype  # type: ignore[union-attr]
    return (
        dtype in (torch.float32, torch.float64)
        and all(t is None or (t.dtype == dtype and t.is_contiguous()) for t in tables)
        and values.numel() > 0
        and fits(len(values), height)
    )
