"""The bodies of all kernels: by their names, as attributes (``cpu.masked_sum``), and run in place of one another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any
from unittest import mock

import numpy as np
import pytest

from maskgrad.kernels import KERNELS, use_kernels
from maskgrad.kernels.kernel import Kernel

__all__ = ["INTERPRETED", "ON_CUDA", "cpu", "cuda", "reference", "running"]

#: Those of CUDA, in Triton's interpreter on tensors in ordinary memory, or on a GPU: one process does one of them.
#: There is no Triton for macOS and Windows.
INTERPRETED = (
    [pytest.param("interpreter", marks=pytest.mark.interpreter(of="file"))] if find_spec("triton") else []
)
ON_CUDA = [
    *INTERPRETED,
    pytest.param("gpu", marks=[pytest.mark.gpu, pytest.mark.interpreter(per="elsewhere")]),
]


class Bodies:
    """Those of one device, or the references."""

    def __init__(self, device: str | None) -> None:
        self._device = device
        self.__name__ = device or "reference"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in KERNELS or (self._device is not None and self._device not in KERNELS[name].backends):
            raise AttributeError(name)
        kernel, device = KERNELS[name], self._device
        if device is None:
            return kernel.reference

        def body(*args: Any, **options: Any) -> Any:
            given, rest = kernel._in_order(args, options)
            return (kernel.reference if kernel.is_trivial(given) else kernel.backend(device))(*given, **rest)

        return body


cpu, cuda, reference = Bodies("cpu"), Bodies("cuda"), Bodies(None)


@contextlib.contextmanager
def running(body: str) -> Iterator[None]:
    """Force a body on every call of a kernel, in backward passes too: ``reference``, ``cpu`` or one of CUDA."""
    if body in ("interpreter", "gpu"):
        import triton

        if (body == "gpu") == triton.knobs.runtime.interpret:
            pytest.skip("one process either interprets Triton or compiles it: see tests/conftest.py")
    if body != "interpreter":
        with use_kernels("cuda" if body == "gpu" else body):
            yield
        return

    def for_cuda(method: Callable[[Kernel, str], Any]) -> Callable[[Kernel, str], Any]:
        return lambda kernel, device: method(kernel, "cuda" if "cuda" in kernel.backends else device)

    with use_kernels("cpu"), contextlib.ExitStack() as stack:
        for name in ("backend", "_recorded"):
            stack.enter_context(mock.patch.object(Kernel, name, for_cuda(getattr(Kernel, name))))
        stack.enter_context(
            np.errstate(all="ignore")
        )  # the interpreter warns of every NaN, also of those thrown away
        yield
