"""Custom autograd functions that know nothing of MaskedTensors refuse them, and say what to do.

``torch.autograd.Function.apply`` takes every argument that is no ``torch.Tensor`` for a constant. A MaskedTensor would
go through ``forward``, outside any graph, and come out with right values and no gradient, without a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.reentrant_checkpoints import CHECKPOINTS, apply_on_parts

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["install", "reason_and_remedy"]


def _guarded(apply: Callable[..., Any], own: Any) -> Callable[..., Any]:
    def guarded(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ == CHECKPOINTS:
            return apply_on_parts(apply, cls, args)
        for argument in args:
            if type(argument) is MaskedTensor:
                raise UnsupportedOperationError(f"{cls.__name__}.apply", reason_and_remedy(cls))
        if not kwargs:
            return apply(cls, *args)
        for argument in kwargs.values():
            if type(argument) is MaskedTensor:
                raise UnsupportedOperationError(f"{cls.__name__}.apply", reason_and_remedy(cls))
        return apply(cls, *args, **kwargs)

    original = getattr(own, "__func__", own)
    guarded.__name__, guarded.__qualname__, guarded.__doc__ = "apply", "Function.apply", original.__doc__
    guarded.__module__, guarded.__wrapped__ = torch.autograd.Function.__module__, original  # type: ignore[attr-defined]
    return guarded


def reason_and_remedy(cls: type) -> str:
    """Why a MaskedTensor is refused by this class, and what to do."""
    lost = "torch.autograd.Function takes it for a constant and would return a result without a gradient"
    return f"{lost}; derive {cls.__name__} from mg.Function and declare its pattern"


def install() -> None:
    """Look at the arguments of every custom function of torch before it runs."""
    own = torch.autograd.Function.__dict__.get("apply") or _inherited("apply")
    if not hasattr(own, "__func__"):  # since 2.14 it is written in C

        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            return own.__get__(None, cls)(*args, **kwargs)

    else:
        apply = own.__func__
    torch.autograd.Function.apply = classmethod(_guarded(apply, own))  # type: ignore[assignment, method-assign]


def _inherited(name: str) -> Any:
    return next(kind.__dict__[name] for kind in torch.autograd.Function.__mro__ if name in kind.__dict__)
