r"""One optimizer step on the rows that have a gradient, of one table or of several: merge and update, in one pass.

The formulas are those of the reference. Indices are sorted first (see ``sorting.py``), so each touched row belongs to
one task and is read and written once; merged gradients never reach memory. The rows of a large table lie at places that
no processor foresees, so they are asked for some rows in advance: half the time for 262,144 rows of
a 10^6 x 64 table. Several tables count as one, their rows numbered through, so that a model with 26 small ones sorts
once and starts one loop. An index outside its table is found before anything is written. Half parameters and rows with
gaps are left to the reference.
"""

from __future__ import annotations

import itertools
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


def sgd_rows_(
    param: Tensor, momentum_buffer: Tensor | None, indices: Tensor, values: Tensor, *, first_step: Tensor | None = None,
    **numbers: Any,
) -> None:  # fmt: skip
    if first_step is None or first_step.is_contiguous():
        buffer = momentum_buffer if numbers.get("momentum") else None
        marks = first_step if buffer is not None else None
        if update_tables("sgd_rows_", [[param], [buffer]], [indices], [values], marks=marks, **numbers):
            return
    family.sgd_rows_.reference(param, momentum_buffer, indices, values, first_step=first_step, **numbers)


def adagrad_rows_(param: Tensor, state_sum: Tensor, indices: Tensor, values: Tensor, **numbers: Any) -> None:
    if not update_tables("adagrad_rows_", [[param], [state_sum]], [indices], [values], **numbers):
        family.adagrad_rows_.reference(param, state_sum, indices, values, **numbers)


def rowwise_adagrad_rows_(
    param: Tensor, state_sum: Tensor, indices: Tensor, values: Tensor, **numbers: Any
) -> None:
    if not update_tables("rowwise_adagrad_rows_", [[param], [state_sum]], [indices], [values], **numbers):
        family.rowwise_adagrad_rows_.reference(param, state_sum, indices, values, **numbers)


def adam_rows_(
    param: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, max_exp_avg_sq: Tensor | None, indices: Tensor, values: Tensor,
    **numbers: Any,
) -> None:  # fmt: skip
    states = [exp_avg, exp_avg_sq, max_exp_avg_sq]
    if not update_tables("adam_rows_", [[t] for t in (param, *states)], [indices], [values], **numbers):
        family.adam_rows_.reference(param, exp_avg, exp_avg_sq, max_exp_avg_sq, indices, values, **numbers)


def rmsprop_rows_(
    param: Tensor, square_avg: Tensor, grad_avg: Tensor | None, momentum_buffer: Tensor | None, indices: Tensor,
    values: Tensor, **numbers: Any,
) -> None:  # fmt: skip
    tables = [param, square_avg, grad_avg, momentum_buffer if numbers.get("momentum") else None]
    if not update_tables("rmsprop_rows_", [[t] for t in tables], [indices], [values], **numbers):
        family.rmsprop_rows_.reference(
            param, square_avg, grad_avg, momentum_buffer, indices, values, **numbers
        )


def update_tables(
    name: str,
    tables: Sequence[Sequence[Tensor | None]],
    indices: Sequence[Tensor],
    values: Sequence[Tensor],
    *,
    marks: Tensor | None = None,
    **numbers: Any,
) -> bool:
    """Update several tables in one pass, if this body knows them; return whether it did.

    Args:
        name: of the kernel.
        tables: the parameters, and for each state of the rule a list of as many tensors, or of None.
        indices: for each table the rows that have a gradient.
        values: their gradients; of one width for all tables.
        marks: for the only table of SGD, the rows whose buffer has not been started.
        numbers: of the rule.
    """
    params: list[Any] = list(tables[0])
    if not _fusable(params, tables[1:], values):
        return False
    found = _runs([len(p) for p in params], indices)
    gradients = [v.detach().to(params[0].dtype).reshape(-1).contiguous() for v in values]
    gradient = gradients[0] if len(gradients) == 1 else torch.cat(gradients)
    ready = prepared(tables)
    update_prepared(ready, found, array(gradient), *bound(name, ready, marks, **numbers))
    return True


class Tables(NamedTuple):
    """Where tables lie: what the loops are told that does not change between steps."""

    bases: Any
    firsts: Any
    width: int
    dtype: torch.dtype
    present: tuple[bool, ...]


def prepared(tables: Sequence[Sequence[Tensor | None]]) -> Tables:
    """Parameters of one width, and for each state as many tensors or None, all contiguous."""
    params: Any = tables[0]
    # Numba compiles one version for arrays and one for None: the parameter stands in for a state that is not used.
    bases = [[t.data_ptr() for t in (params if kind[0] is None else kind)] for kind in tables]  # type: ignore[union-attr]
    firsts = [0, *itertools.accumulate(len(p) for p in params)]
    present = tuple(kind[0] is not None for kind in tables[1:])
    width = math.prod(params[0].shape[1:])
    return Tables(np.array(bases, np.int64), np.array(firsts, np.int64), width, params[0].dtype, present)


def bound(
    name: str, tables: Tables, marks: Tensor | None = None, **numbers: Any
) -> tuple[Any, tuple[Any, ...]]:
    """The loop of a kernel, and its last arguments: the numbers in the type of the tables."""
    loop, arguments = _RULES[name](_Numbers(tables.dtype, numbers), *tables.present)
    if name == "sgd_rows_":
        arguments = (_NO_MARKS if marks is None else array(marks), *arguments)
    return loop, arguments


def update_prepared(
    tables: Tables, found: Runs, gradient: Any, loop: Any, arguments: tuple[Any, ...]
) -> None:
    """Update the rows that were ``found``; ``gradient`` is a 1-D array of the dtype of the tables."""
    number = len(found.rows)
    run(
        loop, tables.bases, tables.firsts, found.rows, gradient, found.keys, found.places, found.starts, tables.width,
        *arguments, tasks=number, elements=3 * tables.width * len(found.keys),
    )  # fmt: skip


_NO_MARKS = np.empty(0, np.uint8)


def _fusable(
    params: Sequence[Tensor], states: Sequence[Sequence[Tensor | None]], values: Sequence[Tensor]
) -> bool:
    dtype, row = params[0].dtype, params[0].shape[1:]
    return (
        dtype in (torch.float32, torch.float64)
        and all(p.shape[1:] == row for p in params)
        and all(
            t is None or (t.dtype == dtype and t.is_contiguous()) for kind in (params, *states) for t in kind
        )
        and all(v.numel() > 0 for v in values)
        and fits(sum(len(v) for v in values), sum(len(p) for p in params))
    )


def _runs(sizes: list[int], indices: Sequence[Tensor]) -> Runs:
    """The runs of equal rows, the rows of all tables numbered through."""
    if len(sizes) == 1:
        return runs(indices[0], sizes[0])
    through = torch.cat(list(indices))
    counts = np.array([len(i) for i in indices], np.int64)
    outside = loops.number_through(through.numpy(), counts, np.array(sizes, np.int64))
    if outside >= 0:
        for i, size in zip(indices, sizes, strict=True):
            runs(i, size)  # raises for the table that it concerns
    return runs(through, sum(sizes))


class _Numbers:
    """Scalars in the type of the parameter: a float64 among them would widen every row."""

    def __init__(self, dtype: torch.dtype, numbers: dict[str, Any]) -> None:
        self.scalar: Any = np.float32 if dtype == torch.float32 else np.float64
        self.numbers = numbers

    def __call__(self, name: str, default: float = 0.0) -> Any:
        return self.scalar(self.numbers.get(name, default))

    def __getitem__(self, name: str) -> Any:
        return self.numbers.get(name, 0.0)


Arguments = tuple[Any, tuple[Any, ...]]


def _sgd_arguments(of: _Numbers, buffered: bool) -> Arguments:
    undamped = of.scalar(1 - of["dampening"])
    momentum = of("momentum")
    return loops.sgd, (
        of("factor", 1), of("lr"), momentum, undamped, of("weight_decay"), buffered, bool(of["nesterov"]),
    )  # fmt: skip


def _adagrad_arguments(of: _Numbers, _: bool) -> Arguments:
    return loops.adagrad, (of("factor", 1), of("lr"), of("weight_decay"), of("eps"))


def _rowwise_adagrad_arguments(of: _Numbers, _: bool) -> Arguments:
    return loops.rowwise_adagrad, (of("factor", 1), of("lr"), of("weight_decay"), of("eps"))


def _adam_arguments(of: _Numbers, _: bool, __: bool, amsgrad: bool) -> Arguments:
    beta1, beta2, step = of["beta1"], of["beta2"], of["step"]
    coupled, decoupled = (0.0, of["weight_decay"]) if of["decoupled"] else (of["weight_decay"], 0.0)
    return loops.adam, (
        of("factor", 1), of.scalar(of["lr"] / (1 - beta1**step)), of.scalar(1 - beta1), of.scalar(beta2),
        of.scalar(1 - beta2), of.scalar(math.sqrt(1 - beta2**step)), of("eps"), of.scalar(coupled),
        of.scalar(1 - of["lr"] * decoupled), amsgrad,
    )  # fmt: skip


def _rmsprop_arguments(of: _Numbers, _: bool, centered: bool, buffered: bool) -> Arguments:
    alpha = of["alpha"]
    return loops.rmsprop, (
        of("factor", 1), of("lr"), of.scalar(alpha), of.scalar(1 - alpha), of("eps"), of("weight_decay"),
        of("momentum"), centered, buffered,
    )  # fmt: skip


#: For each kernel, given its numbers and which states are there: the loop and its last arguments.
_RULES: dict[str, Any] = {
    "sgd_rows_": _sgd_arguments,
    "adagrad_rows_": _adagrad_arguments,
    "rowwise_adagrad_rows_": _rowwise_adagrad_arguments,
    "adam_rows_": _adam_arguments,
    "rmsprop_rows_": _rmsprop_arguments,
}
