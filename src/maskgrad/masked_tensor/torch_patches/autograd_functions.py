"""Custom autograd functions refuse MaskedTensors, unless they are derived from ``mg.Function``.

``torch.autograd.Function.apply`` treats every argument that is not a ``torch.Tensor`` as a constant. A MaskedTensor
would go through ``forward``, outside any graph, and silently return right values without a gradient.

``torch.utils.checkpoint`` with ``use_reentrant=True`` is such a function, which saves its plain arguments and runs
again in backward. It gets the plain parts of MaskedTensors, which are rebuilt inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.pytrees import holds_masked

__all__ = ["CHECKPOINTS", "apply_on_parts", "install", "reason_and_remedy"]

#: module of PyTorch's own functions for checkpoints
CHECKPOINTS = "torch.utils.checkpoint"

#: module of PyTorch's tensors on several devices
TENSOR_PARALLEL = "torch.distributed.tensor"

_NO_DTENSOR = (
    "a module under parallelize_module, or distribute_tensor, distributes plain tensors only",
    (
        "Parallelize layers that work on each position independently, and use "
        "y = mg.masked(module(x.filled(0.)), mask) for them, with a mask (B, T, 1) of the positions."
    ),
)


def _guarded(apply: Callable[..., Any], own: Any) -> Callable[..., Any]:
    def guarded(cls: type, *args: Any, **kwargs: Any) -> Any:
        if cls.__module__ == CHECKPOINTS:
            return apply_on_parts(apply, cls, args)
        for argument in (*args, *kwargs.values()) if kwargs else args:
            if type(argument) is MaskedTensor:
                if cls.__module__.startswith(TENSOR_PARALLEL):
                    raise UnsupportedOperationError("DTensor", *_NO_DTENSOR)
                raise UnsupportedOperationError(f"{cls.__name__}.apply", reason_and_remedy(cls))
        return apply(cls, *args, **kwargs)

    original = getattr(own, "__func__", own)
    guarded.__name__, guarded.__qualname__, guarded.__doc__ = "apply", "Function.apply", original.__doc__
    guarded.__module__, guarded.__wrapped__ = torch.autograd.Function.__module__, original  # type: ignore[attr-defined]
    return guarded


def reason_and_remedy(cls: type) -> str:
    """Return the reason for which this class refuses a MaskedTensor, and the remedy."""
    lost = "torch.autograd.Function treats it as a constant and would return a result without a gradient"
    return f"{lost}; derive {cls.__name__} from mg.Function and declare its pattern"


def install() -> None:
    """Check the arguments of every custom function of torch before it runs."""
    own: Any = next(vars(kind)["apply"] for kind in torch.autograd.Function.__mro__ if "apply" in vars(kind))
    if not hasattr(own, "__func__"):  # since 2.14 it is written in C

        def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
            return own.__get__(None, cls)(*args, **kwargs)

    else:
        apply = own.__func__
    torch.autograd.Function.apply = classmethod(_guarded(apply, own))  # type: ignore[assignment, method-assign]


def apply_on_parts(apply: Callable[..., Any], cls: type, args: tuple[Any, ...]) -> Any:
    """Replace ``CheckpointFunction.apply``: pass gradients through MaskedTensors, also in lists, tuples and dicts.

    Other classes (the one that saves the arguments of non-reentrant checkpoints) get their original
    arguments: values that are not tensors are saved unchanged.
    """
    if cls.__name__ != "CheckpointFunction" or len(args) < 2:
        return apply(cls, *args)
    run, preserve_random_state, *given = args
    leaves, spec = pytree.tree_flatten(given) if holds_masked(given) else (list(given), None)
    spec_of_results: list[pytree.TreeSpec] = []

    def on_parts(*parts: Any) -> Any:
        result = run(*(parts if spec is None else pytree.tree_unflatten(list(parts), spec)))
        if not holds_masked(result):
            return result
        found, of_result = pytree.tree_flatten(result)
        spec_of_results[:] = [of_result]
        return tuple(found)

    result = apply(cls, on_parts, preserve_random_state, *leaves)
    if not spec_of_results:
        return result
    return pytree.tree_unflatten(list(result), spec_of_results[0])
