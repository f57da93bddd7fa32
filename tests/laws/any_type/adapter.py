"""The interface between the laws and a type of masked tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["Adapter"]


def _as_it_is(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


@dataclass(frozen=True)
class Adapter:
    """Functions with which the laws create masked tensors, call PyTorch's functions and read results.

    Args:
        make: returns the masked tensor of these values and this Boolean mask of the same shape, True = specified.
            Gradients are computed for the values.
        values: the values of a masked tensor, as a differentiable plain tensor. Its unspecified
            entries are not read.
        mask: the Boolean mask of a masked tensor, of the shape of its values.
        call: the result of ``function(*args, **kwargs)``, where arguments, and members of lists, may be masked
            tensors. The default calls the function itself. Raise any exception to refuse.

    Example:
        >>> import torch
        >>> from tests.laws.any_type import Adapter
        >>> def nan_is_missing():
        ...     return Adapter(
        ...         make=lambda values, mask: torch.where(mask, values, torch.nan),
        ...         values=lambda x: x,
        ...         mask=lambda x: ~x.isnan(),
        ...     )
    """

    make: Callable[[Tensor, Tensor], Any]
    values: Callable[[Any], Tensor]
    mask: Callable[[Any], Tensor]
    call: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any] = _as_it_is
