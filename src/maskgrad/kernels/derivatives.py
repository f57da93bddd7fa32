"""Derivatives of kernels that PyTorch finds from their references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def through(reference: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """``save`` and ``backward`` of a :class:`Kernel`: differentiate the reference, which runs again.

    Derivatives of any order exist, because the reference is ordinary PyTorch.
    """

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.inputs = [None if isinstance(x, Tensor) else x for x in inputs]
        ctx.places = [i for i, x in enumerate(inputs) if isinstance(x, Tensor)]
        ctx.save_for_backward(*[inputs[i] for i in ctx.places])

    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        again = torch.is_grad_enabled()
        inputs, wanted = list(ctx.inputs), []
        with torch.enable_grad():
            for i, x in zip(ctx.places, ctx.saved_tensors, strict=True):
                inputs[i] = x
                if ctx.needs_input_grad[i]:
                    # an alias: its history belongs to the outer graph
                    inputs[i] = x.view_as(x) if again else x.detach().requires_grad_()
                    wanted.append(i)
            results = reference(*inputs)
            pairs = zip(results if isinstance(results, tuple) else (results,), grads, strict=True)
            differentiable = [(y, g) for y, g in pairs if y.requires_grad and g is not None]
            found = torch.autograd.grad(
                [y for y, _ in differentiable], [inputs[i] for i in wanted], [g for _, g in differentiable],
                create_graph=again, allow_unused=True,
            )  # fmt: skip
        result: list[Tensor | None] = [None] * len(inputs)
        for i, part in zip(wanted, found, strict=True):
            result[i] = part
        return tuple(result)

    return {"save": save, "backward": backward}
