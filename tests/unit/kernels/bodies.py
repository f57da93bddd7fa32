"""The bodies of all kernels by their names, as attributes: ``cpu.masked_sum``, ``reference.masked_sum``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maskgrad.kernels import KERNELS

__all__ = ["cpu", "cuda", "reference"]


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
        return lambda *args, **options: (
            kernel.reference if kernel.is_trivial(args) else kernel.backend(device)
        )(*args, **options)


cpu, cuda, reference = Bodies("cpu"), Bodies("cuda"), Bodies(None)
