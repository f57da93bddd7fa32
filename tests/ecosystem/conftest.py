"""What the packages need so that their tests can be strict."""

from __future__ import annotations

import os

import torch

# No test needs a network, and none may wait for one.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def _declare_operators_of_torchvision() -> None:
    """Let torchvision be imported where its build does not fit PyTorch's: one for CUDA beside a PyTorch for the CPU.

    Its compiled operators (for boxes in images) are then absent, and no test uses them; but without a declaration
    of these two the import fails, of torchvision and of all that imports it if it is there.
    """
    from importlib.util import find_spec

    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    from pathlib import Path

    compiled = [*Path(spec.origin).parent.glob("_C*.so"), *Path(spec.origin).parent.glob("_C*.pyd")]
    try:
        torch.ops.load_library(str(compiled[0]))
    except (OSError, IndexError):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)


_KEPT: list[torch.library.Library] = []
_declare_operators_of_torchvision()
