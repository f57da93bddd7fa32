"""torchvision is imported where its compiled operators cannot be."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch

__all__ = ["declare_operators"]

_kept: list[torch.library.Library] = []


def declare_operators() -> None:
    """Let torchvision be imported where its build does not fit PyTorch's: one for CUDA beside a PyTorch for the CPU.

    Its compiled operators (for boxes in images) are then absent, and no test uses them; but without a declaration
    of these two the import fails, of torchvision and of all that imports it if it is there.
    """
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    compiled = [*Path(spec.origin).parent.glob("_C*.so"), *Path(spec.origin).parent.glob("_C*.pyd")]
    try:
        torch.ops.load_library(str(compiled[0]))
    except (OSError, IndexError):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
