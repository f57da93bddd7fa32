"""Selection of the implementation of a kernel.

==============  ======================================================================================
``cpu``           loops compiled by Numba: large plain CPU tensors
``compiled``      the reference, compiled by ``torch.compile``: large plain tensors on a CUDA device
``reference``     ordinary PyTorch: everything else
==============  ======================================================================================

"Everything else" is: tracing (export, ``jit.trace``; of ``torch.compile`` all but large tensors on the CPU, where its
graphs call the operator of a kernel with ``in_graphs``), ``torch.func`` transforms and forward-mode derivatives,
dispatch modes (fake tensors, ``make_fx``), other devices and layouts, tensor subclasses, dtypes that the kernel does
not support, and tensors so small that starting a compiled kernel costs more than it saves.

The environment variable ``MASKGRAD_KERNELS`` forces ``reference``, or ``cpu`` or ``compiled`` (for small tensors too,
``compiled`` also on a CPU), or ``invariant``: references that add in one order (``invariant.py``), and loops only where
they are exact; so does :func:`use_kernels` for a block of code. ``explain`` says the reason for a choice.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from maskgrad.compatibility import refusal_of_numba
from maskgrad.kernels import compiled
from maskgrad.mode import PLAIN, TRACED, is_plain, mode

__all__ = [
    "BODIES", "Supported", "forced_body", "gradients_are_stacked", "is_invariant", "loops_run",
    "reference_is_forced", "selected", "use_kernels",
]  # fmt: skip

VARIABLE = "MASKGRAD_KERNELS"
BODIES = ("reference", "cpu", "compiled", "invariant")
#: Kernels whose loops compute what the references do, bit for bit.
EXACT = ("masked_filling", "masked_expand", "masked_count")

#: Number of values from which a formula on a CUDA device is compiled. Not measured: a pass over fewer (4 MB) takes less
#: time there than to start it, so that fusing passes saves nothing, and to compile takes seconds.
LARGE = 1 << 20

_block_choice: contextvars.ContextVar[str | None] = contextvars.ContextVar("maskgrad_kernels", default=None)
_is_in_dispatch = torch._C._dispatch_tls_is_dispatch_key_included
_STACKING = torch._C._dispatch_key_parse("VmapMode")


class Supported:
    """What the compiled implementations of a kernel support; see ``Kernel`` for the meaning."""

    name: str
    dtypes: frozenset[torch.dtype]
    least: int | None
    in_graphs: int | None
    fuses: bool
    has_loops: bool


def selected(
    kernel: Supported, values: Tensor, *others: Tensor | None, number: int | None = None
) -> tuple[str, str]:
    """Return which body of ``kernel`` runs on these tensors ("operator" in a graph), and if the reference does, why.

    ``number`` is that of the values which decide, if not of ``values``.
    """
    how, forced = mode(), forced_body()
    if forced == "invariant":
        forced = None if kernel.name in EXACT else "reference"
    if forced == "reference":
        return "reference", f"the reference is forced by use_kernels or by {VARIABLE}"
    if how in TRACED:
        reason = (
            "a graph is being traced"
            if how == "export"
            else _why_not_in_a_graph(kernel, number, values, *others)
        )
        return "reference" if reason else "operator", reason
    body = "compiled" if forced == "compiled" or (forced is None and values.is_cuda) else "cpu"
    least = LARGE if body == "compiled" else kernel.least
    if forced is None and least is not None and (values.numel() if number is None else number) < least:
        return "reference", f"fewer than {least} values are too few for a compiled kernel"
    reason = _why_not(kernel, body, how, values, *others)
    return "reference" if reason else body, reason


def _why_not(kernel: Supported, body: str, how: str, values: Tensor, *others: Tensor | None) -> str:
    if values.dtype not in kernel.dtypes:
        return f"there is no compiled kernel for {values.dtype}"
    if not (kernel.has_loops if body == "cpu" else kernel.fuses):
        return f"{kernel.name} has no loops" if body == "cpu" else f"{kernel.name} is not compiled by PyTorch"
    for x in (values, *others):
        if x is not None and not (is_plain(x) if body == "cpu" else _is_alike(x, values)):
            device = "the CPU" if body == "cpu" else "the device of the values"
            return f"a tensor is a subclass, not on {device}, not strided, or a lazy view"
    if how == "transform":
        return "a transform, a forward-mode derivative or a dispatch mode is active"
    if gradients_are_stacked():
        return "gradients are batched by is_grads_batched"
    if body == "cpu":
        return "" if numba_works() else "numba cannot be used"
    return _why_not_compiled(kernel.name, values)


def gradients_are_stacked() -> bool:
    """Return whether gradients are batched by ``is_grads_batched``, whose tensors look ordinary."""
    return bool(_is_in_dispatch(_STACKING))


def _why_not_compiled(name: str, values: Tensor) -> str:
    if torch.are_deterministic_algorithms_enabled():
        return "torch.use_deterministic_algorithms(True) is set, which PyTorch's own functions obey"
    if values.is_cuda and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured, in which nothing can be compiled"
    return compiled.failures.get(name, "")


def _is_alike(x: Tensor, values: Tensor) -> bool:
    """Return whether ``x`` is an ordinary tensor on the device of ``values``."""
    return (
        type(x) in PLAIN
        and x.device == values.device
        and x.layout is torch.strided
        and not (x.is_conj() or x.is_neg())
    )


def _why_not_in_a_graph(kernel: Supported, number: int | None, values: Tensor, *others: Tensor | None) -> str:
    """Export needs ordinary PyTorch; torch.compile takes an operator where it is faster: large float tensors."""
    least = kernel.in_graphs
    if least is None:
        return "a graph is being traced"
    if not values.is_cpu or values.dtype not in (torch.float32, torch.float64):
        return "a graph is being traced, and torch.compile is as fast on this device and dtype"
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    if not statically_known_true(
        (values.numel() if number is None else number) >= least
    ):  # sizes are not read: one graph for all sizes
        return f"a graph is being traced, and there may be fewer than {least} values"
    # If another size decides, a gradient is expanded, whatever its strides, to that of the last operand.
    for tensor in others[-1:] if number is not None else (values, *others):
        if tensor is not None and not tensor.is_contiguous():
            return "a graph is being traced, and an operand is not contiguous"
    return ""


def forced_body() -> str | None:
    """Return the body that :func:`use_kernels` or the environment variable forces; fixed when a graph is traced."""
    return _block_choice.get() or _environment()


def reference_is_forced() -> bool:
    """Return whether all kernels must run in ordinary PyTorch, in traced graphs too."""
    return forced_body() in ("reference", "invariant")


def is_invariant() -> bool:
    """Return whether the bits of a sample must not depend on its batch; False in graphs, whose compilers choose."""
    return forced_body() == "invariant" and mode() not in TRACED


# torch.compiler.assume_constant_result does this, and imports the compiler
forced_body._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _environment() -> str | None:
    """The choice for the whole process: the variable is read once."""
    value = os.environ.get(VARIABLE, "")
    if value and value not in BODIES:
        raise ValueError(
            f"the environment variable {VARIABLE} must be one of {', '.join(BODIES)}, or unset; got {value!r}"
        )
    return value or None


@functools.cache
def numba_works() -> bool:
    """Return whether the compiled kernels for the CPU can be used; warns once if not."""
    try:
        with uninterrupted():
            refusal = refusal_of_numba(importlib.import_module("numba").__version__)
            if refusal:
                raise ImportError(refusal)
            importlib.import_module("maskgrad.kernels.cpu")
    except Exception as error:  # a broken package may raise anything
        warnings.warn(
            f"maskgrad uses its slow reference kernels because numba cannot be used ({error}). "
            f"Set {VARIABLE}=reference to use them without this warning",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def loops_run() -> bool:
    """Return whether loops may run on plain tensors for CPUs now, however few their values are."""
    return mode() == "eager" and forced_body() in (None, "cpu", "invariant") and numba_works()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C: a module that was imported partially cannot be imported again in this process."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received: list[Any] = []
    signal.signal(signal.SIGINT, lambda *arguments: received.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[0])


@contextlib.contextmanager
def use_kernels(body: str) -> Iterator[None]:
    """Force ``"reference"``, ``"cpu"``, ``"compiled"`` or ``"invariant"`` kernels inside a ``with`` block.

    ``"cpu"`` are loops compiled by Numba; ``"compiled"`` the formulas of PyTorch, compiled by ``torch.compile``; both
    for small tensors, too. Where these cannot run (:func:`maskgrad.kernels.explain` says why), the reference runs.
    ``"invariant"``: the bits of a sample do not depend on the batch, at a price (docs/how_do_i/same_bits.md).
    """
    if body not in BODIES:
        raise ValueError(f"use_kernels() expects one of {', '.join(BODIES)}; got {body!r}")
    token = _block_choice.set(body)
    try:
        yield
    finally:
        _block_choice.reset(token)
