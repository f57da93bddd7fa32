"""Contractions: the sum over the products whose factors are all specified; unspecified if there is none."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from maskgrad.patterns.eager import may_look_at
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.facts import Operation, functions_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

__all__ = ["OPERATIONS", "linear", "matmul"]

PATTERN = "specified where at least one product has only specified factors"
GRADIENT = "the other factor, where both are specified"


def _safe(operand: Entries | Tensor) -> Tensor:
    """Zero takes no part in a sum of products."""
    return torch.where(operand.mask, operand.values, 0) if isinstance(operand, Entries) else operand


def _product(
    function: Callable[..., Tensor],
    left: Entries | Tensor,
    right: Entries | Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """``function(left, right)`` in which an unspecified factor silences its partner, infinite or not.

    0 * inf is NaN, so a specified infinity whose every partner is unspecified would still show. Where values may
    be looked at (eagerly, on the CPU) such results are recomputed: finite products once, and IEEE's result only
    where a non-finite factor really meets a specified one.
    """
    a, b = _safe(left), _safe(right)
    rest = () if bias is None else (bias,)
    result = function(a, b, *rest)
    inexact = result.is_floating_point() or result.is_complex()
    if not (inexact and may_look_at(result)) or bool(torch.isfinite(result.detach().sum())):
        return result
    broken_a, broken_b = ~torch.isfinite(a), ~torch.isfinite(b)
    if not bool(broken_a.any() | broken_b.any()):
        return result
    meets = function(_indicator(left), broken_b.float()) + function(broken_a.float(), _indicator(right))
    finite = function(torch.where(broken_a, 0, a), torch.where(broken_b, 0, b), *rest)
    met = meets > 0
    # IEEE's gradients belong to IEEE's results; where no result is broken, none arises on the way (0 * inf) either.
    return torch.where(met, result, finite) if bool(met.any()) else finite


def _indicator(operand: Entries | Tensor) -> Tensor:
    """1 where specified: the product of indicators counts the products with only specified factors."""
    if isinstance(operand, Entries):
        return operand.mask.float()
    return torch.ones_like(operand, dtype=torch.float32)


def _covered(left: Entries | Tensor, right: Entries | Tensor, shape: torch.Size) -> Tensor:
    """The mask of ``left @ right``, without a product where one side is fully specified."""
    if not isinstance(right, Entries):
        assert isinstance(left, Entries)  # dispatch calls a rule only with masked arguments
        rows = left.mask.any(-1)
        return (rows if right.ndim == 1 else rows.unsqueeze(-1)).expand(shape)
    if not isinstance(left, Entries):
        columns = right.mask.any(-2 if right.mask.ndim > 1 else -1)
        return (columns if left.ndim == 1 or right.mask.ndim == 1 else columns.unsqueeze(-2)).expand(shape)
    return torch.matmul(left.mask.float(), right.mask.float()) > 0


def matmul(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``matmul`` and its special cases by rank (``mm``, ``bmm``, ``mv``, ``dot``), which check shapes themselves."""
    first = (kwargs["input"],) if "input" in kwargs else ()
    left, right = (*args, *first, *(value for name, value in kwargs.items() if name != "input"))
    function = torch.matmul if function is operator.imatmul else function
    values = _product(function, left, right)
    return Entries(values, _covered(left, right, values.shape))


def _transposed(weight: Entries | Tensor) -> Entries | Tensor:
    if isinstance(weight, Entries):
        return Entries(weight.values, weight.mask.mT) if weight.mask.ndim > 1 else weight
    return weight.mT if weight.ndim > 1 else weight


def linear(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entries:
    """``input @ weight.T + bias``; an unspecified bias leaves its outputs unspecified."""
    arguments: dict[str, Any] = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    input, weight, bias = arguments["input"], arguments["weight"], arguments.get("bias")
    safe_bias = torch.where(bias.mask, bias.values, 0) if isinstance(bias, Entries) else bias
    values = _product(F.linear, input, weight, safe_bias)
    masks = [_covered(input, _transposed(weight), values.shape)] if _is_masked(input, weight) else []
    if isinstance(bias, Entries):
        masks.append(bias.mask.expand(values.shape))
    return Entries(values, masks[0] if len(masks) == 1 else masks[0] & masks[1])


def _is_masked(*operands: Entries | Tensor) -> bool:
    return any(isinstance(operand, Entries) for operand in operands)


def _record(
    name: str, body: Callable[..., Any], extra: tuple[Any, ...] = (), reflected: Any = ()
) -> Operation:
    functions, _, methods = functions_named(name, extra)
    return Operation(
        name,
        "contractions",
        functions,
        body,
        PATTERN,
        GRADIENT,
        identity=0,
        methods=methods,
        reflected=reflected,
    )


OPERATIONS: tuple[Operation, ...] = (
    _record(
        "matmul",
        matmul,
        (operator.matmul, operator.imatmul, torch.Tensor.__matmul__, torch.linalg.matmul),
        reflected=((torch.Tensor.__rmatmul__, operator.matmul),),
    ),
    _record("mm", matmul),
    _record("bmm", matmul),
    _record("mv", matmul),
    _record("dot", matmul),
    _record("linear", linear),
)
