"""Selection of the implementation of a kernel.

==============  ======================================================================================
``cpu``           compiled by Numba, behind an operator of ``torch.library``: large plain CPU tensors
``cuda``          compiled by Triton, behind the same operator: large plain tensors on a CUDA device
``reference``     ordinary PyTorch: everything else
==============  ======================================================================================

"Everything else" is: tracing (export, ``jit.trace``; of ``torch.compile`` all but large tensors on the CPU, where its
graphs call the operator of a kernel with ``in_graphs``), ``torch.func`` transforms and forward-mode derivatives,
dispatch modes (fake tensors, ``make_fx``), other devices and layouts, tensor subclasses, dtypes that the kernel does
not support, and tensors so small that starting a compiled kernel costs more than it saves.

The environment variable ``MASKGRAD_KERNELS`` forces ``reference``, or ``cpu`` or ``cuda`` (for small tensors too); so
does :func:`use_kernels` for a block of code. :func:`explain` returns the reason for a choice.
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
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from maskgrad.compatibility import refusal_of_numba

if TYPE_CHECKING:
    from maskgrad.kernels.kernel import Kernel

__all__ = [
    "BODIES",
    "KERNELS",
    "can_read_values",
    "explain",
    "gradients_are_stacked",
    "is_eager",
    "is_plain",
    "is_small",
    "is_transformed",
    "kernels_in_use",
    "reference_is_forced",
    "repeats_calls",
    "runs_compiled",
    "use_kernels",
]

VARIABLE = "MASKGRAD_KERNELS"
BODIES = ("reference", "cpu", "cuda")

#: By name; each is registered where its reference is defined.
KERNELS: dict[str, Kernel[..., Any]] = {}

_block_choice: contextvars.ContextVar[str | None] = contextvars.ContextVar("maskgrad_kernels", default=None)
PLAIN = (Tensor, torch.nn.Parameter)
_STRIDED = torch.strided
# Used in every operation: bound once, because four chains of attributes cost as much as the calls.
_transforms_are_active = torch._C._are_functorch_transforms_active
_number_of_dispatch_modes = torch._C._len_torch_dispatch_stack
_tracing_state = torch._C._get_tracing_state
_forward_ad = torch.autograd.forward_ad
_is_in_dispatch = torch._C._dispatch_tls_is_dispatch_key_included
_STACKING = torch._C._dispatch_key_parse("VmapMode")


def runs_compiled(kernel: str, values: Tensor, *others: Tensor | None) -> bool:
    """Return whether a compiled implementation of ``kernel`` runs on ``values`` (for dtype and size) and ``others``."""
    return not KERNELS[kernel].is_small(values) and explain(kernel, values, *others) == ""


def is_small(values: Tensor, least: int, number: int | None = None) -> bool:
    """Whether there are fewer than ``least`` values and nothing is forced; not distinguished for small tensors."""
    if torch.compiler.is_compiling():  # graphs must not depend on sizes
        return False
    return (values.numel() if number is None else number) < least and _forced() is None


def gradients_are_stacked() -> bool:
    """Return whether ``torch.autograd.grad(…, is_grads_batched=True)`` is active; its tensors look ordinary."""
    return _is_in_dispatch(_STACKING)


def explain(kernel: str, values: Tensor, *others: Tensor | None, number: int | None = None) -> str:
    """Return why ``kernel`` would run its reference on these tensors; empty if the compiled implementation runs.

    ``number`` is that of the values which decide, if not of ``values``.
    """
    # First, because the rest cannot be traced.
    if torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting():
        return _why_not_in_a_graph(kernel, number, values, *others)
    forced = _block_choice.get() or _environment()
    if forced == "reference":
        return f"the reference is forced by use_kernels or by {VARIABLE}"
    record = KERNELS[kernel]
    on_cuda = values.is_cuda
    if forced is None:
        number = values.numel() if number is None else number
        if number < record.min_numel:
            return f"{number} values are too few: compiled kernels start at {record.min_numel}"
        if number < record.recorded and torch.is_grad_enabled() and _needs_gradient(values, *others):
            return (
                f"{number} values are too few: with a gradient, compiled kernels start at {record.recorded}"
            )
    elif (forced == "cuda") != on_cuda:
        return f"the {forced} kernels are forced by use_kernels or by {VARIABLE}, but the tensors are on another device"
    if values.dtype not in record.dtypes:
        return f"there is no compiled kernel for {values.dtype}"
    if on_cuda:
        return _why_not_on_cuda(record, values, *others)
    for x in (values, *others):
        if x is not None and not is_plain(x):
            return "a tensor is a subclass, not on the CPU, not strided, or a lazy view"
    if is_transformed():
        return _TRANSFORMED
    return "" if numba_works() else "numba cannot be used"


def _needs_gradient(*tensors: Tensor | None) -> bool:
    for x in tensors:  # noqa: SIM110 (a generator costs as much as the checks)
        if x is not None and x.requires_grad:
            return True
    return False


def _why_not_in_a_graph(kernel: str, number: int | None, values: Tensor, *others: Tensor | None) -> str:
    """Export needs ordinary PyTorch; torch.compile takes an operator where it is faster: large float tensors."""
    record = KERNELS[kernel]
    least = record.in_graphs
    if least is None or torch.compiler.is_exporting():
        return "a graph is being traced"
    if _forced_in_graph() == "reference":
        return f"the reference is forced by use_kernels or by {VARIABLE}"
    if not values.is_cpu or values.dtype not in (torch.float32, torch.float64):
        return "a graph is being traced, and torch.compile is as fast on this device and dtype"
    if torch._C._are_functorch_transforms_active():  # functorch has no rules for our operators
        return _TRANSFORMED
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


_TRANSFORMED = "a transform, a forward-mode derivative or a dispatch mode is active"


def _why_not_on_cuda(record: Kernel[..., Any], values: Tensor, *others: Tensor | None) -> str:
    if "cuda" not in record.backends:
        return f"{record.name} has no implementation for CUDA devices"
    for tensor in (values, *others):
        if tensor is not None and not (
            type(tensor) in PLAIN
            and tensor.device == values.device
            and tensor.layout == torch.strided
            and not (tensor.is_conj() or tensor.is_neg())
        ):
            return "a tensor is a subclass, on another device than the values, not strided, or a lazy view"
    if is_transformed():
        return _TRANSFORMED
    return "" if triton_works() else "triton cannot be used"


def is_plain(x: Tensor) -> bool:
    """Return whether ``x`` is an ordinary CPU tensor: no subclass, no other layout, no lazy view."""
    return type(x) in PLAIN and x.is_cpu and x.layout is _STRIDED and not (x.is_conj() or x.is_neg())


def can_read_values(*tensors: Tensor) -> bool:
    """Return whether values can be read: real CPU tensors, outside any compilation, export or transformation.

    Otherwise a read would wait for a device, break a graph, or find no values at all. Code that depends on a read must
    be a check of input or a shortcut, not the meaning of a result; the one exception is written down in
    docs/decisions/0004-nonfinite-factors-without-a-partner.md.
    """
    if not is_eager():
        return False
    for x in tensors:  # noqa: SIM110 (a generator costs as much as the checks)
        if not is_plain(x):
            return False
    return True


def repeats_calls(is_small: bool) -> bool:
    """Return whether a call on plain CPU tensors may be one that is repeated."""
    forced = _forced()
    if forced != "cpu" and (is_small or forced is not None):
        return False
    return not (is_transformed() or gradients_are_stacked())


def is_eager() -> bool:
    """Return whether no compilation, export or transformation is active; an export runs under a dispatch mode."""
    return not (
        torch.compiler.is_dynamo_compiling()  # first, because the rest cannot be traced
        or _transforms_are_active()
        or _forward_ad._current_level >= 0
        or _number_of_dispatch_modes() > 0
        or _tracing_state() is not None
    )


def runs_eagerly(kernel: str, number_of_values: int) -> bool:
    """:func:`runs_compiled` for tensors that are known to be plain, on the CPU and of a supported dtype."""
    if not is_eager():
        return False
    forced = _forced()
    enough = forced == "cpu" or (forced is None and number_of_values >= KERNELS[kernel].min_numel)
    return enough and numba_works()


def is_transformed() -> bool:
    """Return whether torch.func, forward-mode derivatives, a dispatch mode or jit.trace is active."""
    return (
        _transforms_are_active()
        or _forward_ad._current_level >= 0
        or _number_of_dispatch_modes() > 0
        or _tracing_state() is not None
    )


def _forced() -> str | None:
    return _block_choice.get() or _environment()


def reference_is_forced() -> bool:
    """Return whether all kernels must run in ordinary PyTorch, in traced graphs too."""
    return _forced_in_graph() == "reference"


def _forced_in_graph() -> str | None:
    """The same for a graph that is being traced: the choice is fixed when it is traced."""
    return _forced()


# torch.compiler.assume_constant_result does this, and imports the compiler
_forced_in_graph._dynamo_marked_constant = True  # type: ignore[attr-defined]


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
    return _can_use("cpu", "numba")


@functools.cache
def triton_works() -> bool:
    """Return whether the compiled kernels for CUDA devices can be used; warns once if not."""
    return _can_use("cuda", "triton")


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


def _can_use(body: str, compiler: str) -> bool:
    try:
        with uninterrupted():
            _refuse_old(importlib.import_module(compiler))
            importlib.import_module(f"maskgrad.kernels.{body}")
    except Exception as error:  # a broken package may raise anything
        warnings.warn(
            f"maskgrad uses its slow reference kernels because {compiler} cannot be used ({error}). "
            f"Set {VARIABLE}=reference to use them without this warning",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
    return True


def _refuse_old(compiler: ModuleType) -> None:
    refusal = refusal_of_numba(compiler.__version__) if compiler.__name__ == "numba" else ""
    if refusal:
        raise ImportError(refusal)


@contextlib.contextmanager
def use_kernels(body: str) -> Iterator[None]:
    """Force ``"reference"``, ``"cpu"`` or ``"cuda"`` kernels (also for small tensors) inside a ``with`` block.

    Where they cannot run (:func:`maskgrad.kernels.selection.explain` says why), the reference runs.
    """
    if body not in BODIES:
        raise ValueError(f"use_kernels() expects one of {', '.join(BODIES)}; got {body!r}")
    token = _block_choice.set(body)
    try:
        yield
    finally:
        _block_choice.reset(token)


def kernels_in_use(device: str | torch.device = "cpu") -> dict[str, str]:
    """Return which implementation each kernel runs for a large tensor on ``device``; imports its compiler to find out.

    The tensor is float32, or int64 for a kernel that takes indices only.
    """
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(
            f"kernels_in_use(): device is {str(device)!r}, but PyTorch finds no CUDA device; pass 'cpu', "
            "or run on a machine with a GPU and a CUDA build of PyTorch"
        )
    size = max(kernel.min_numel for kernel in KERNELS.values())
    samples = {
        dtype: torch.empty(1, dtype=dtype, device=place).expand(size)
        for dtype in (torch.float32, torch.int64)
    }
    body = "cuda" if place.type == "cuda" else "cpu"
    return {
        name: body
        if runs_compiled(name, samples[torch.float32 if torch.float32 in kernel.dtypes else torch.int64])
        else "reference"
        for name, kernel in KERNELS.items()
    }
