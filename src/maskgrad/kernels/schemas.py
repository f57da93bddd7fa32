"""Every kernel's schema: the table of contents of this package.

======================  ==================================================================================
``masked_sum``            sum of the specified entries, and their number
``masked_mean``           mean of the specified entries, and their number
``masked_count``          number of specified entries
``masked_spread``         adjoint of the masked sum: a broadcast gradient, exactly 0 where nothing is specified
``masked_filling``        the values where the mask holds, a constant elsewhere
``merge_rows``            rows that share an index become one
``sort_rows``             rows that share an index become neighbours
``segment_sum``           sum of each segment of a list of entries
``segment_spread``        its adjoint: each entry gets what its segment has
``segment_extremum``      largest or smallest entry of each segment
``segment_softmax``       softmax within each segment, or its logarithm
``segment_softmax_backward``  its derivative
``adagrad_rows_``         merge, then one Adagrad step on the touched rows
``sgd_rows_``             merge, then one SGD step on the touched rows
======================  ==================================================================================

Each is an operator ``torch.ops.maskgrad.<name>`` with a compiled body for the CPU, the reference elsewhere, a
fake body and (for the first five) a derivative written with the others, so that derivatives of any order exist.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskgrad.kernels import reference
from maskgrad.kernels.reference.coalescing import merge_backward
from maskgrad.kernels.reference.reductions import HALVES
from maskgrad.kernels.segments import DERIVATIVES as SEGMENT_DERIVATIVES
from maskgrad.kernels.selection import KERNELS, runs_on_cpu

SCHEMAS = {
    "masked_sum": "(Tensor values, Tensor mask, int[] dim, bool keepdim, ScalarType? dtype=None) -> (Tensor, Tensor)",
    "masked_mean": "(Tensor values, Tensor mask, int[] dim, bool keepdim, ScalarType? dtype=None) -> (Tensor, Tensor)",
    "masked_count": "(Tensor mask, int[] dim, bool keepdim) -> Tensor",
    "masked_spread": "(Tensor grad, Tensor mask, ScalarType dtype) -> Tensor",
    "masked_filling": "(Tensor values, Tensor mask, Scalar filler) -> Tensor",
    "merge_rows": "(Tensor indices, Tensor values, SymInt num_rows, str reduce) -> (Tensor, Tensor)",
    "sort_rows": "(Tensor indices, SymInt num_rows) -> (Tensor, Tensor, Tensor)",
    "segment_sum": "(Tensor values, Tensor pointers, Tensor? order, ScalarType? dtype=None) -> Tensor",
    "segment_spread": "(Tensor values, Tensor pointers, Tensor? order, SymInt number) -> Tensor",
    "segment_extremum": "(Tensor values, Tensor pointers, Tensor? order, bool largest) -> Tensor",
    "segment_softmax": "(Tensor values, Tensor pointers, Tensor? order, bool logarithm) -> Tensor",
    "segment_softmax_backward": "(Tensor grad, Tensor output, Tensor pointers, Tensor? order, bool logarithm) "
    "-> Tensor",
    "adagrad_rows_": "(Tensor(a!) param, Tensor(b!) state_sum, Tensor indices, Tensor values, *, float lr, "
    "float weight_decay, float eps, bool maximize=False) -> ()",
    "sgd_rows_": "(Tensor(a!) param, Tensor(b!)? momentum_buffer, Tensor indices, Tensor values, *, float lr, "
    "float momentum=0., float dampening=0., float weight_decay=0., bool nesterov=False, bool maximize=False, "
    "Tensor(c!)? first_step=None) -> ()",
}
# Which argument decides dtype and size, where it is not the first one.
_LEADING = {"merge_rows": 1, "adagrad_rows_": 0, "sgd_rows_": 0}


def spread(grad: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """``masked_spread`` by whichever body fits: backward passes may run under transforms that forward ones did not."""
    if runs_on_cpu("masked_spread", mask.new_empty((), dtype=dtype).expand(mask.shape), grad, mask):
        return torch.ops.maskgrad.masked_spread(grad, mask, dtype)  # type: ignore[no-any-return]
    return reference.masked_spread(grad, mask, dtype)


def _cpu_body(name: str) -> Callable[..., Any]:
    def body(*args: Any, **kwargs: Any) -> Any:
        # The operator may be called directly, on what the compiled body does not know (complex numbers).
        if args[_LEADING.get(name, 0)].dtype not in KERNELS[name][0]:
            return getattr(reference, name)(*args, **kwargs)
        result = getattr(importlib.import_module("maskgrad.kernels.cpu"), name)(*args, **kwargs)
        # PyTorch does not see what is written through a numpy array, and must: saved tensors may be among them.
        torch.autograd.graph.increment_version([args[i] for i in mutated if isinstance(args[i], Tensor)])
        if isinstance(kwargs.get("first_step"), Tensor):
            torch.autograd.graph.increment_version(kwargs["first_step"])
        return result

    mutated = [
        i
        for i, argument in enumerate(SCHEMAS[name].split(", "))
        if "!)" in argument and "first" not in argument
    ]
    return body


def _save_reduction(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    values, mask, ctx.dim, ctx.keepdim, _ = inputs
    ctx.dtype = values.dtype
    ctx.save_for_backward(mask, output[1])
    ctx.mark_non_differentiable(output[1])


def _kept(x: Tensor, ctx: Any, mask: Tensor) -> Tensor:
    """``x`` with its reduced dimensions put back, of size 1."""
    if not ctx.keepdim and mask.ndim:
        for d in sorted(d % mask.ndim for d in ctx.dim):
            x = x.unsqueeze(d)
    return x


def _sum_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    mask, _count = ctx.saved_tensors
    return spread(_kept(grad, ctx, mask), mask, ctx.dtype), None, None, None, None


def _mean_backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    mask, count = ctx.saved_tensors
    # float16 / int64 would turn the count into float16, and counts above 65504 into inf.
    wide = grad.to(torch.float32) if grad.dtype in HALVES else grad
    return spread(_kept(wide / count.clamp(min=1), ctx, mask), mask, ctx.dtype), None, None, None, None


def _save_spread(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    grad, mask, _ = inputs
    ctx.shape, ctx.dtype = grad.shape, grad.dtype
    ctx.save_for_backward(mask)


def _spread_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
    from maskgrad.kernels import masked_sum

    (mask,) = ctx.saved_tensors
    lead = mask.ndim - len(ctx.shape)
    dim = tuple(d for d in range(mask.ndim) if d < lead or (ctx.shape[d - lead] == 1 and mask.shape[d] != 1))
    total, _ = masked_sum(grad, mask, dim, True)
    return total.reshape(ctx.shape).to(ctx.dtype), None, None


def _save_filling(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _filling_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    from maskgrad.kernels import masked_filling

    return masked_filling(grad, ctx.saved_tensors[0], 0), None, None


def _fake_filling(values: Tensor, mask: Tensor, filler: float) -> Tensor:
    return torch.empty_like(values)


def _save_merge(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    indices, values, _, ctx.reduce = inputs
    ctx.save_for_backward(indices, values, *output)
    ctx.mark_non_differentiable(output[0])


def _merge_backward(ctx: Any, _: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
    indices, values, rows, merged = ctx.saved_tensors
    return None, merge_backward(grad, indices, rows, values.detach(), merged.detach(), ctx.reduce), None, None


_DERIVATIVES: dict[str, tuple[Callable[..., Any], Callable[..., None]]] = {
    "masked_sum": (_sum_backward, _save_reduction),
    "masked_mean": (_mean_backward, _save_reduction),
    "masked_spread": (_spread_backward, _save_spread),
    "masked_filling": (_filling_backward, _save_filling),
    "merge_rows": (_merge_backward, _save_merge),
    **SEGMENT_DERIVATIVES,
}


# Bodies for tensors without data, where the reference's own would lie otherwise in memory than the compiled result.
_FAKES: dict[str, Callable[..., Any]] = {"masked_filling": _fake_filling}


def _writes_only(*_: Any, **__: Any) -> None:
    """The fake body of an operator that returns nothing."""


def register() -> None:
    """Define every operator, once; the package does so when it is imported."""
    for name, schema in SCHEMAS.items():
        qualified = f"maskgrad::{name}"
        slow = getattr(reference, name)
        torch.library.define(qualified, schema)
        torch.library.impl(qualified, "default", slow)
        torch.library.impl(qualified, "cpu", _cpu_body(name))
        in_place = name.endswith("_")
        torch.library.register_fake(qualified, _writes_only if in_place else _FAKES.get(name, slow))
        if name in _DERIVATIVES:
            backward, save = _DERIVATIVES[name]
            torch.library.register_autograd(qualified, backward, setup_context=save)
