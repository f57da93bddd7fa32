"""Which body of a kernel runs.

==============  ======================================================================================
``cpu``           compiled by Numba, behind an operator of ``torch.library``: large plain CPU tensors
``reference``     ordinary PyTorch: everything else
==============  ======================================================================================

"Everything else" is: tracing (``torch.compile``, export, ``jit.trace``), ``torch.func`` transforms and forward-mode
derivatives, dispatch modes (fake tensors, ``make_fx``), other devices and layouts, tensor subclasses, dtypes
that the kernel does not know, and tensors so small that starting a compiled kernel costs more than it saves.

The environment variable ``MASKGRAD_KERNELS`` forces ``reference``, or ``cpu`` for small tensors too; so does
:func:`use_kernels` for a block of code. :func:`why` tells the reason for a choice in words.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "BODIES",
    "KERNELS",
    "compiled",
    "is_plain",
    "is_transformed",
    "kernels_in_use",
    "runs_on_cpu",
    "use_kernels",
    "why",
]

VARIABLE = "MASKGRAD_KERNELS"
BODIES = ("reference", "cpu")

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_REDUCIBLE = frozenset((*_FLOATS, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool))
_MOVABLE = _REDUCIBLE
_MERGEABLE = frozenset((*_FLOATS, torch.int32, torch.int64))
_SORTABLE = frozenset((torch.int32, torch.int64))
_UPDATABLE = frozenset(_FLOATS)
# For each kernel: the dtypes its compiled body knows, and the number of values from which it wins. Measured on
# 2 cores, in microseconds, reference / compiled: masked_mean of 8,192 values 18 / 44, of 65,536 105 / 67, with
# its gradient 200 / 320, of 262,144 550 / 150; masked_filling of 16,384 values at a random mask 15 / 29, of 32,768
# 64 / 30, with its gradient 120 / 105; merge_rows of (16, 64) values 27 / 23, (256, 64) 71 / 30, (4096,
# 1) 43 / 120. An operator with a derivative written in Python is what costs. Updates win almost always, and
# check indices in the same words at any size.
KERNELS: dict[str, tuple[frozenset[torch.dtype], int]] = {
    "masked_sum": (_REDUCIBLE, 65_536),
    "masked_mean": (_REDUCIBLE, 65_536),
    "masked_count": (_REDUCIBLE, 65_536),
    "masked_spread": (_UPDATABLE, 32_768),
    "masked_filling": (_MOVABLE, 32_768),
    "merge_rows": (_MERGEABLE, 8_192),
    "sort_rows": (_SORTABLE, 8_192),
    "segment_sum": (_MERGEABLE, 8_192),
    "segment_spread": (_MERGEABLE, 8_192),
    "segment_extremum": (_MERGEABLE, 8_192),
    "segment_softmax": (_UPDATABLE, 8_192),
    "segment_softmax_backward": (_UPDATABLE, 8_192),
    "adagrad_rows_": (_UPDATABLE, 0),
    "sgd_rows_": (_UPDATABLE, 0),
}

_block_choice: contextvars.ContextVar[str | None] = contextvars.ContextVar("maskgrad_kernels", default=None)
_PLAIN = (Tensor, torch.nn.Parameter)


def runs_on_cpu(kernel: str, values: Tensor, *others: Tensor | None) -> bool:
    """Whether the compiled body of ``kernel`` runs on ``values`` (which decide dtype and size) and ``others``."""
    return why(kernel, values, *others) == ""


def compiled(kernel: str, *arguments: Any) -> Any:
    """What the compiled body gives; called through its operator, at twice the price, only if PyTorch must know.

    It must if it records a gradient, or if ``is_grads_batched`` stacks several (no transform of ``torch.func``).
    """
    records = torch.is_grad_enabled()
    for x in arguments:
        if isinstance(x, Tensor) and ((records and x.requires_grad) or _is_stacked(x)):
            return getattr(torch.ops.maskgrad, kernel)(*arguments)
    return getattr(_cpu(), kernel)(*arguments)


_is_stacked = torch._C._functorch.is_legacy_batchedtensor


@functools.cache
def _cpu() -> Any:
    import maskgrad.kernels.cpu

    return maskgrad.kernels.cpu


def why(kernel: str, values: Tensor, *others: Tensor | None) -> str:
    """Why ``kernel`` would run its reference on these tensors; the empty string if the compiled body runs."""
    # First, because what follows cannot be traced.
    if torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return "a graph is being traced"
    forced = _forced()
    if forced == "reference":
        return f"the reference is forced by use_kernels or by {VARIABLE}"
    dtypes, least = KERNELS[kernel]
    if forced is None and values.numel() < least:
        return f"{values.numel()} values are too few to pay for a compiled kernel; it starts at {least}"
    if values.dtype not in dtypes:
        return f"there is no compiled kernel for {values.dtype}"
    for tensor in (values, *others):
        if tensor is not None and not is_plain(tensor):
            return "a tensor is a subclass, not on the CPU, not strided, or a lazy view"
    if is_transformed():
        return "a transform, a forward-mode derivative or a dispatch mode is active"
    return "" if numba_works() else "numba cannot be imported"


def is_plain(x: Tensor) -> bool:
    """An ordinary tensor in the memory of the CPU: no subclass, no other layout, no lazy view."""
    return (
        type(x) in _PLAIN
        and x.device.type == "cpu"
        and x.layout == torch.strided
        and not (x.is_conj() or x.is_neg())
    )


def is_transformed() -> bool:
    """Whether torch.func, forward-mode derivatives, a dispatch mode or jit.trace is at work."""
    return bool(
        torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    )


def _forced() -> str | None:
    return _block_choice.get() or _environment(os.environ.get(VARIABLE, ""))


@functools.cache
def _environment(value: str) -> str | None:
    if value and value not in BODIES:
        raise ValueError(
            f"the environment variable {VARIABLE} must be one of {', '.join(BODIES)}, or unset; got {value!r}"
        )
    return value or None


@functools.cache
def numba_works() -> bool:
    """Whether the compiled kernels can be imported; says so, once, if not."""
    try:
        import maskgrad.kernels.cpu  # noqa: F401
    except ImportError as error:
        warnings.warn(
            f"maskgrad runs its slow reference kernels, because numba cannot be imported ({error}). "
            f"Set {VARIABLE}=reference to choose them without this warning",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


@contextlib.contextmanager
def use_kernels(body: str) -> Iterator[None]:
    """Force one body, ``"reference"`` or ``"cpu"`` (also for small tensors), inside a ``with`` block.

    Where the compiled body cannot run (see :func:`maskgrad.kernels.selection.why`), the reference does, forced or not.
    """
    if body not in BODIES:
        raise ValueError(f"use_kernels() takes one of {', '.join(BODIES)}; got {body!r}")
    token = _block_choice.set(body)
    try:
        yield
    finally:
        _block_choice.reset(token)


def kernels_in_use() -> dict[str, str]:
    """Which body each kernel runs for an ordinary large tensor on the CPU; imports Numba to find out.

    The tensor holds float32 numbers, or int64 ones for a kernel that takes indices only.
    """
    size = max(least for _, least in KERNELS.values())
    samples = {dtype: torch.empty(1, dtype=dtype).expand(size) for dtype in (torch.float32, torch.int64)}
    return {
        kernel: "cpu"
        if runs_on_cpu(kernel, samples[torch.float32 if torch.float32 in dtypes else torch.int64])
        else "reference"
        for kernel, (dtypes, _) in KERNELS.items()
    }
