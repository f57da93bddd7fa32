"""Rounding is no leak: what differs by little is computed once more in float64, in which rounding shrinks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from maskgrad.doctor.batches import applied, fields, replaced

__all__ = ["DOUBTFUL", "FLOAT32", "LITTLE", "SHRINKS", "batch_in_double", "in_double"]

#: relative to the loss or the gradient: more is no rounding in float32
DOUBTFUL = 1e-3
#: smaller differences count as rounding in float32; larger ones are computed again in float64
LITTLE = 2e-5
#: how far float32 is apart, with its sums in another order, where float64 cannot be tried
FLOAT32 = 5e-6
#: rounding shrinks by 1e8 in float64, what is computed of other numbers stays
SHRINKS = 1e-3


@contextlib.contextmanager
def in_double(roots: Iterable[nn.Module]) -> Iterator[None]:
    """Let modules and new tensors have float64 for a while; gradients are put aside."""
    held: dict[int, Tensor] = {}
    for module in roots:
        held |= {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    before = [(tensor, tensor.data, tensor.grad) for tensor in held.values() if tensor.is_floating_point()]
    default = torch.get_default_dtype()
    try:
        for tensor, data, _ in before:
            tensor.grad = None
            tensor.data = data.double()
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        torch.set_default_dtype(default)
        for tensor, data, gradient in before:
            tensor.grad = None
            tensor.data = data
            tensor.grad = gradient


def batch_in_double(batch: Any) -> Any:
    """The batch with its floating-point tensors in float64."""

    def double(tensor: Tensor) -> Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    return replaced(batch, {key: applied(field, double) for key, field in fields(batch).items()})
