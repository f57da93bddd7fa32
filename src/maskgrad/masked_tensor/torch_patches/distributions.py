"""Log-probabilities of MaskedTensors: their specified entries must lie in the support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.patch import exchange, refuse

__all__ = ["install"]

#: Distributions that stack their parameters in one dimension, and sum over it.
JOINT = ("Beta", "Dirichlet", "Multinomial", "RelaxedOneHotCategorical", "LKJCholesky", "Wishart")


def _check(distribution: Any, value: MaskedTensor) -> None:
    """Check as PyTorch does: the shape ends with that of an event, the rest broadcasts, values are in the support."""
    shape, event = value.shape, distribution.event_shape
    expected = distribution.batch_shape + event
    if event and shape[len(shape) - len(event) :] != event:
        raise ValueError(
            f"the right-most sizes of value must be the event shape of {type(distribution).__name__}, "
            f"{tuple(event)}, found a value of shape {tuple(shape)}"
        )
    try:
        torch.broadcast_shapes(shape, expected)
    except RuntimeError:
        raise ValueError(
            f"value must broadcast with batch_shape + event_shape of {type(distribution).__name__}, {tuple(expected)}, "
            f"found shape {tuple(shape)}"
        ) from None
    density = distribution
    while isinstance(density, torch.distributions.Independent):  # a product of densities
        density = density.base_dist
    joint = len(density.event_shape)  # number of last dimensions with a joint density
    if joint:
        parts = value.mask.flatten(-joint)
        if not torch.equal(parts.any(-1), parts.all(-1)):
            raise UnsupportedOperationError(
                f"{type(distribution).__name__}.log_prob",
                f"some value is partly specified along its last {joint} dimension(s), which have a joint density",
                "Pass values that are fully specified or fully unspecified, or the distribution of the known part.",
            )
    try:
        support = distribution.support
    except NotImplementedError:
        return
    if not bool(torch._is_all_true(support.check(value))):
        raise ValueError(
            f"the specified entries of value must lie in the support of {distribution}, {support}, found {value}"
        )


def install() -> None:
    """Let ``Distribution._validate_sample`` take MaskedTensors, and refuse parameters that are lists of several."""
    for name in JOINT:
        refuse(
            f"torch.distributions.{name}.__init__",
            "its parameters form one vector, and unspecified ones would be dropped from it",
            "Use the fully specified rows, parameters[rows], or x.filled(value).",
        )()

    def validate_sample(original: Callable[..., None], self: Any, value: Any) -> None:
        if isinstance(value, MaskedTensor):
            _check(self, value)
        else:
            original(self, value)

    exchange("torch.distributions.distribution.Distribution._validate_sample", validate_sample)
