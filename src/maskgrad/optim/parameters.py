"""The parameters of a group: what errors call them, which tensors stand for them, and which can be trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from maskgrad.masked_tensor import MaskedTensor

__all__ = ["check_parameter", "name_of", "named", "with_values"]


def name_of(group: dict[str, Any], position: int, number: int) -> str:
    """The words by which an error message calls a parameter of a group."""
    names: Sequence[str] | None = group.get("param_names")
    return f"parameter {names[number]!r}" if names else f"parameter {number} of group {position}"


def named(group: dict[str, Any], position: int) -> Iterator[tuple[str, Tensor]]:
    """Each parameter of a group, with its name."""
    for number, param in enumerate(group["params"]):
        yield name_of(group, position, number), param


def with_values(params: Any) -> Any:
    """Parameters, in which MaskedTensors (perhaps with a name) are replaced by the values that they train."""
    if isinstance(params, Tensor):
        return params
    if isinstance(params, MaskedTensor):
        return [params._values]
    if isinstance(params, set):  # PyTorch refuses it: the order of a set is nobody's promise
        return params

    def values(param: Any) -> Any:
        if isinstance(param, MaskedTensor):
            return param._values
        if isinstance(param, tuple) and len(param) == 2 and isinstance(param[1], MaskedTensor):
            return param[0], param[1]._values
        return param

    return [values(param) for param in params]


def check_parameter(param: Tensor, name: str) -> None:
    """TypeError unless ``param`` can be trained."""
    if param.layout is not torch.strided:
        raise TypeError(
            f"{name} is itself a sparse tensor ({param.layout}); mg.optim updates dense parameters and MaskedTensors "
            "of any layout: x = mg.from_sparse(parameter.detach()).requires_grad_(), and mg.optim gets x. Or keep a "
            "dense parameter and use mg.masked(parameter, mask).to_sparse() in the model"
        )
    if not (param.is_floating_point() or param.is_complex()):
        raise TypeError(
            f"{name} has dtype {param.dtype}; only floating-point and complex parameters can be trained"
        )
