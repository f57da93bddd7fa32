"""Custom autograd functions refuse MaskedTensors, unless they are derived from ``mg.Function``.

``torch.autograd.Function.apply`` treats every argument that is not a ``torch.Tensor`` as a constant. A MaskedTensor
would go through ``forward``, outside any graph, and silently return right values without a gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.pytrees import holds_masked

__all__ = ["install", "reason_and_remedy"]

#: module of PyTorch's tensors on several devices
TENSOR_PARALLEL = "torch.distributed.tensor"

_NO_DTENSOR = (
    "a module under parallelize_module, or distribute_tensor, distributes plain tensors only",
    (
        "Parallelize layers that work on each position independently, and use "
        "y = mg.masked(module(x.filled(0.)), mask) for them, with a mask (B, T, 1) of the positions."
    ),
)


def reason_and_remedy(cls: type) -> str:
    """Return the reason for which this class refuses a MaskedTensor, and the remedy."""
    lost = "torch.autograd.Function treats it as a constant and would return a result without a gradient"
    return f"{lost}; derive {cls.__name__} from mg.Function and declare its pattern"


def install() -> None:
    """Check the arguments of every custom function of torch before it runs."""
    # a classmethod; since 2.14 it is written in C
    own: Any = next(vars(kind)["apply"] for kind in torch.autograd.Function.__mro__ if "apply" in vars(kind))

    @functools.wraps(torch.autograd.Function.apply)
    def guarded(cls: type, *args: Any, **kwargs: Any) -> Any:
        apply = own.__get__(None, cls)
        if cls.__module__ == "torch.utils.checkpoint":
            return _checkpointed(apply, cls, args)
        for argument in (*args, *kwargs.values()) if kwargs else args:
            if type(argument) is MaskedTensor:
                if cls.__module__.startswith(TENSOR_PARALLEL):
                    raise UnsupportedOperationError("DTensor", *_NO_DTENSOR)
                raise UnsupportedOperationError(f"{cls.__name__}.apply", reason_and_remedy(cls))
        return apply(*args, **kwargs)

    guarded.__module__ = torch.autograd.Function.__module__
    torch.autograd.Function.apply = classmethod(guarded)  # type: ignore[assignment, method-assign]


def _checkpointed(apply: Callable[..., Any], cls: type, args: tuple[Any, ...]) -> Any:
    """Refuse what a reentrant checkpoint is given or returns; the others only save their arguments."""
    if cls.__name__ != "CheckpointFunction":
        return apply(*args)
    if holds_masked(args) or holds_masked(found := apply(*args)):
        raise UnsupportedOperationError(
            "torch.utils.checkpoint.checkpoint(use_reentrant=True)",
            "it computes outside of the graph, and would return a result without a gradient",
            "Pass use_reentrant=False.",
        )
    return found
