"""How much memory the process has needed."""

from __future__ import annotations

import sys

import torch

__all__ = ["peak_memory"]


def peak_memory(device: torch.device) -> dict[str, int]:
    """Bytes at the worst moment so far: of the process, and of tensors on the GPU if that is where they are.

    The process's entry is absent where the system does not tell (Windows).
    """
    found: dict[str, int] = {}
    try:
        import resource
    except ModuleNotFoundError:
        pass
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # macOS counts bytes, Linux kibibytes
        found["process"] = peak if sys.platform == "darwin" else peak * 1024
    if device.type == "cuda":
        found["device"] = torch.cuda.max_memory_allocated(device)
    return found
