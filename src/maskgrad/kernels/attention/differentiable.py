"""PyTorch's fused attention, differentiable any number of times.

The derivative of a fused kernel is a fused kernel itself, which PyTorch cannot differentiate. Where a graph of the
gradient is wanted, the formula is differentiated instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from maskgrad.kernels.invariant import FEATURES, is_invariant, product
from maskgrad.kernels.softmax import masked_softmax
from maskgrad.mode import mode


def differentiable_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, scale: float | None
) -> Tensor:
    """``F.scaled_dot_product_attention`` (…, L, Ev), with derivatives of any order."""
    if is_invariant():
        return _by_blocks(query, key, value, mask, dropout_p, scale)
    if is_transformed_by_function():
        return _by_formula(query, key, value, mask, dropout_p, scale)
    result = F.scaled_dot_product_attention(query, key, value, mask, dropout_p, scale=scale)
    if dropout_p or not (result.requires_grad and mode() == "eager" and _is_fused(result.grad_fn)):
        return result  # graphs have no nodes, and results that are not fused have all derivatives
    return differentiable(result, _by_formula, query, key, value, mask, 0.0, scale)


def differentiable(result: Tensor, formula: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """``result`` with its own first derivative, and those of the equivalent ``formula(*inputs)`` for higher orders."""
    return _Twice.apply(result, formula, *inputs)  # type: ignore[no-any-return, no-untyped-call]


def is_transformed_by_function() -> bool:
    """Return whether ``torch.func`` or forward-mode AD is active: fused kernels lack some rules."""
    return mode() == "transform" and bool(
        torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0
    )


def _by_formula(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, scale: float | None
) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(query, key, value, mask, dropout_p, scale=scale)


def _by_blocks(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, scale: float | None
) -> Tensor:
    """The formula, with products and sums whose bits do not depend on the number and the padding of the sequences."""
    scores = product(query, key.mT, inner=FEATURES) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None and mask.dtype is not torch.bool:
        scores, mask = scores + mask, mask != -torch.inf
    taken = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand(scores.shape)
    weights = torch.where(taken, masked_softmax(scores, taken, -1), 0)
    return product(torch.dropout(weights, dropout_p, dropout_p > 0), value, columns=FEATURES)


def _is_fused(node: Any) -> bool:
    """Return whether ``result`` comes from a fused kernel; since PyTorch 2.14 also without heads (one is added)."""
    if "Squeeze" in node.name():
        node = node.next_functions[0][0]
    return "ScaledDotProduct" in node.name()


class _Twice(torch.autograd.Function):
    """A result whose derivative PyTorch cannot differentiate. Saves what the kernel saves, for as long."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, formula: Callable[..., Tensor], *inputs: Any) -> Tensor:
        ctx.formula = formula
        ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]
        ctx.places = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
        ctx.save_for_backward(*[inputs[i] for i in ctx.places])
        return result.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        found: list[Tensor | None] = [None] * len(ctx.others)
        if not torch.is_grad_enabled():
            return grad, None, *found
        inputs = list(ctx.others)
        for i, x in zip(ctx.places, ctx.saved_tensors, strict=True):
            inputs[i] = x
        wanted = [i for i in ctx.places if inputs[i].requires_grad]
        again = ctx.formula(*inputs)
        parts = torch.autograd.grad(again, [inputs[i] for i in wanted], grad, create_graph=True)
        for i, part in zip(wanted, parts, strict=True):
            found[i] = part
        return None, None, *found
