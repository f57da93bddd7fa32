"""TorchScript refuses MaskedTensors: its graphs would be valid for one mask only.

A trace records tensors, constants, and decisions of Python, silently also those that depended on the mask. A script
supports only PyTorch's own types, and reports a missing type somewhere inside maskgrad.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import nn

from maskgrad.errors import UnsupportedOperationError

__all__ = ["refuse_scripts", "refuse_trace", "trace_state"]


#: None unless ``torch.jit.trace`` records (``torch.jit.is_tracing`` takes ten times as long)
trace_state: Callable[[], Any] = torch._C._get_tracing_state

_REMEDY = "use torch.compile(fullgraph=True), or torch.export.export for a file, which support MaskedTensors"


def refuse_trace() -> NoReturn:
    """Raise an error for a MaskedTensor created while ``torch.jit.trace`` records."""
    raise UnsupportedOperationError(
        "torch.jit.trace",
        f"a trace repeats the control flow of the example's mask for all other masks; {_REMEDY}",
    )


def refuse_scripts(functions: Iterable[Any]) -> None:
    """Make ``torch.jit.script`` refuse these functions and modules by name, wherever a scripted function calls them."""
    for function in functions:
        if inspect.isfunction(function) or (inspect.isclass(function) and issubclass(function, nn.Module)):

            def refuse(*_: Any, name: str = function.__name__) -> NoReturn:
                raise UnsupportedOperationError(
                    f"torch.jit.script of maskgrad's {name}", f"TorchScript has no such type; {_REMEDY}"
                )

            function.__prepare_scriptable__ = refuse  # type: ignore[union-attr]  # the name that torch looks for
