"""The bodies of all kernels, by their names, as attributes: ``cpu.masked_sum``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from maskgrad.kernels import KERNELS

__all__ = ["cpu", "reference"]


class Bodies:
    """The loops, or the references."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in KERNELS:
            raise AttributeError(name)
        kernel = KERNELS[name]
        if self.__name__ == "reference":
            return kernel.reference

        def body(*args: Any, **options: Any) -> Any:
            given = kernel._in_order(args, options)
            plain = not kernel.has_loops or kernel.is_trivial(given)
            return (kernel.reference if plain else kernel.backend("cpu"))(*given)

        return body


cpu, reference = Bodies("cpu"), Bodies("reference")
