"""Data that leaves PyTorch: for NumPy, Numba, a pointer or a kernel of Triton.

Where such data come back is unknown: a mode is notified, and keeps the memory, which may be written. What they mean
for the result, a run of the step as a whole decides.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode_stack

__all__ = ["OUTSIDE", "outside"]

#: why it was not tracked
OUTSIDE = "code outside of PyTorch runs once"
_TORCH, _MASKGRAD = str(Path(torch.__file__).parent), str(Path(__file__).parent.parent)
#: how the memory of a tensor leaves PyTorch
_WAYS: list[tuple[Any, str]] = [(Tensor, name) for name in ("numpy", "tolist", "data_ptr", "__dlpack__")]
_WAYS += [(torch.UntypedStorage, "data_ptr"), (torch.TypedStorage, "data_ptr")]


@contextlib.contextmanager
def outside(mode: Any) -> Iterator[None]:
    """Inside, ``mode`` is notified of tensors whose memory leaves PyTorch."""
    with contextlib.ExitStack() as stack:
        for kind, name in _WAYS:
            left = _notifying(mode, f"{kind.__name__}.{name}", getattr(kind, name))
            stack.enter_context(mock.patch.object(kind, name, left))
        yield


def _notifying(mode: Any, name: str, way: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(way)
    def left(held: Any, *args: Any, **kwargs: Any) -> Any:
        # PyTorch itself asks for pointers only to look at them, and so do we for those of a storage
        ours = _TORCH if isinstance(held, Tensor) else (_TORCH, _MASKGRAD)
        looks = name.endswith("data_ptr") and sys._getframe(1).f_code.co_filename.startswith(ours)
        if not looks and any(active is mode for active in _get_current_dispatch_mode_stack()):
            with _disable_current_modes():
                depends = mode.leaves_torch(_tensor_of(held))
            if depends:
                mode.note_not_followed(name, OUTSIDE)
        return way(held, *args, **kwargs)

    return left


def _tensor_of(held: Any) -> Tensor:
    """A tensor, or that of a storage."""
    if isinstance(held, Tensor):
        return held
    storage = held._untyped_storage if isinstance(held, torch.TypedStorage) else held
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
