"""The formula of a kernel, compiled by ``torch.compile``: for large eager tensors on CUDA devices.

``torch.compile(formula)`` alone would not do. It refuses a second backward pass; here a formula is compiled without
gradients, and the kernel's ``torch.autograd.Function`` calls other kernels in its own backward pass. And each set of
constants (``dim``, ``keepdim``) would be one more graph of the same code, of which PyTorch makes eight and then falls
back to eager calls in silence; here each set, and each kind of tensors, has a function with code of its own. Sizes
stay open.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["failures", "run"]

#: Number of compiled functions that are kept.
KEPT = 256

#: Why a kernel is not compiled any more, by its name.
failures: dict[str, str] = {}


class Kind(NamedTuple):
    """What a graph for any size depends on: whether sizes and strides are 0, 1 or more, besides type and device."""

    dtype: torch.dtype
    device: torch.device
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def run(name: str, formula: Callable[..., Any], *args: Any) -> Any:
    """``formula(*args)`` without a gradient, compiled; as it is, with a warning once, if it cannot be compiled."""
    try:
        with torch.no_grad():
            return _made(formula, tuple(map(_kind, args)))(
                *[x.detach() for x in args if isinstance(x, Tensor)]
            )
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a compiler may raise anything
        reason = f"PyTorch could not compile it ({type(error).__name__}: {str(error).strip().partition(chr(10))[0]})"
    with torch.no_grad():
        result = formula(*args)  # an error of the arguments is raised here, in the formula's own words
    if not failures:
        warnings.warn(
            f"maskgrad uses the slow reference of {name}: {reason}. Set MASKGRAD_KERNELS=reference to use those of all "
            "kernels, without this warning",
            RuntimeWarning,
            stacklevel=2,
        )
    failures[name] = reason
    return result


def _kind(x: Any) -> Any:
    """What the compiled function depends on: of a number the type, as 1, 1.0 and True are equal, and the sign of 0."""
    if isinstance(x, Tensor):
        sizes, strides = (tuple([min(n, 2) for n in found]) for found in (x.shape, x.stride()))
        return Kind(x.dtype, x.device, sizes, strides)
    if isinstance(x, float):
        return float, x.hex()
    if isinstance(x, (list, tuple)):
        return tuple, tuple(map(_kind, x))
    return type(x), x


def _constant(kind: Any) -> Any:
    """The argument of which :func:`_kind` was taken, if it is no tensor."""
    of, x = kind
    if of is tuple:
        return tuple(map(_constant, x))
    return float.fromhex(x) if of is float else x


@functools.lru_cache(KEPT)
def _made(formula: Callable[..., Any], kinds: Sequence[Any]) -> Callable[..., Any]:
    """The function of the tensors alone, compiled when it is called."""
    places = [i for i, kind in enumerate(kinds) if isinstance(kind, Kind)]
    given = tuple([None if isinstance(kind, Kind) else _constant(kind) for kind in kinds])

    # numbers would be open, too, as sizes are, and -0.0 would become 0.0
    constants: Any = torch.compiler.assume_constant_result(lambda: given)

    def of_tensors(*tensors: Tensor) -> Any:
        args = list(constants())
        for i, x in zip(places, tensors, strict=True):
            args[i] = x
        return formula(*args)

    # A frame of Dynamo's own, as graphs begin in none of this package; with its own code, by which graphs are counted.
    frame: Any = importlib.import_module("torch._dynamo.external_utils").wrap_inline(of_tensors)
    frame.__code__ = frame.__code__.replace()
    return torch.compile(frame, dynamic=True, fullgraph=True)
