"""Values of which some are unspecified have a log-probability: what is specified must lie in the support."""

from __future__ import annotations

import functools
from typing import Any

import torch

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.package_patches.refusing import refuse
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.exchange import exchange

__all__ = ["install"]

#: Distributions that put their parameters side by side in one dimension, and sum over it.
JOINT = ("Beta", "Dirichlet", "Multinomial", "RelaxedOneHotCategorical", "LKJCholesky", "Wishart")


def _check(distribution: Any, value: MaskedTensor) -> None:
    """The checks of PyTorch: the event is the last part of the shape, the rest broadcasts, and the support."""
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
    joint = _joint_dims(distribution)
    if joint:
        parts = value.mask.flatten(-joint)
        if not torch.equal(parts.any(-1), parts.all(-1)):
            raise UnsupportedOperationError(
                f"{type(distribution).__name__}.log_prob",
                f"some value is specified in part of its last {joint} dimension(s), which have one density together",
                "Give values that are specified whole or not at all, or the distribution of the part that is known.",
            )
    try:
        support = distribution.support
    except NotImplementedError:
        return
    if not bool(torch._is_all_true(support.check(value))):
        raise ValueError(
            f"the specified entries of value must lie in the support of {distribution}, {support}, found {value}"
        )


def _joint_dims(distribution: Any) -> int:
    """How many of the last dimensions have one density together; an Independent has a product of densities."""
    while isinstance(distribution, torch.distributions.Independent):
        distribution = distribution.base_dist
    return len(distribution.event_shape)


def install() -> None:
    """Let ``Distribution._validate_sample`` take MaskedTensors, and refuse parameters that are lists of several."""
    for name in JOINT:
        refuse(
            f"torch.distributions.{name}.__init__",
            "its parameters belong together, and would count as a list from which some are left out",
            "Use the rows that are specified, parameters[rows], or x.filled(value).",
        )()

    def of_masked(original: Any) -> Any:
        @functools.wraps(original)
        def validate_sample(self: Any, value: Any) -> None:
            if isinstance(value, MaskedTensor):
                _check(self, value)
            else:
                original(self, value)

        return validate_sample

    exchange("torch.distributions.distribution.Distribution._validate_sample", of_masked)
