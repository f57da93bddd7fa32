"""Which implementation of a kernel runs, and why."""

from __future__ import annotations

import torch
from torch import Tensor

from maskgrad.kernels.kernel import KERNELS
from maskgrad.kernels.selection import LARGE, forced_body, numba_works, selected
from maskgrad.mode import mode

__all__ = ["explain", "kernels_in_use", "runs_compiled", "runs_loops"]


def explain(kernel: str, values: Tensor, *others: Tensor | None, number: int | None = None) -> str:
    """Return why ``kernel`` would run its reference on these tensors; empty if a compiled implementation runs.

    ``number`` is that of the values which decide, if not of ``values``.
    """
    return selected(KERNELS[kernel], values, *others, number=number)[1]


def runs_compiled(kernel: str, values: Tensor, *others: Tensor | None) -> bool:
    """Return whether a compiled implementation of ``kernel`` runs on ``values`` (for dtype and size) and ``others``."""
    return not KERNELS[kernel].is_small(values) and explain(kernel, values, *others) == ""


def runs_loops(kernel: str, number_of_values: int) -> bool:
    """:func:`runs_compiled` for tensors that are known to be plain, on the CPU and of a supported dtype."""
    if mode() != "eager":
        return False
    forced = forced_body()
    enough = forced == "cpu" or (forced is None and number_of_values >= KERNELS[kernel].least)
    return enough and numba_works()


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
    size = max(LARGE, *(kernel.least for kernel in KERNELS.values()))
    samples = {
        dtype: torch.empty(1, dtype=dtype, device=place).expand(size)
        for dtype in (torch.float32, torch.int64)
    }
    return {
        name: selected(kernel, samples[torch.float32 if torch.float32 in kernel.dtypes else torch.int64])[0]
        for name, kernel in KERNELS.items()
    }
