"""Log-probabilities of MaskedTensors: their specified entries must lie in the support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["JOINT", "validate_sample"]

#: Distributions that stack their parameters in one dimension, and sum over it.
JOINT = ("Beta", "Dirichlet", "Multinomial", "RelaxedOneHotCategorical", "LKJCholesky", "Wishart")


def validate_sample(original: Callable[..., None], self: Any, value: Any) -> None:
    """Replace ``Distribution._validate_sample``, which takes tensors only, by type."""
    if not isinstance(value, MaskedTensor):
        original(self, value)
        return
    name, event = type(self).__name__, self.event_shape
    if event and value.shape[-len(event) :] != event:
        raise ValueError(
            f"the right-most sizes of value must be the event shape of {name}, {tuple(event)}, found a value of shape "
            f"{tuple(value.shape)}"
        )
    density = self
    while isinstance(density, torch.distributions.Independent):  # a product of densities
        density = density.base_dist
    joint = len(density.event_shape)  # number of last dimensions with a joint density
    parts = value.mask.flatten(-joint) if joint else value.mask[..., None]
    if not torch.equal(parts.any(-1), parts.all(-1)):
        raise UnsupportedOperationError(
            f"{name}.log_prob",
            f"some value is partly specified along its last {joint} dimension(s), which have a joint density",
            "Pass values that are fully specified or fully unspecified, or the distribution of the known part.",
        )
    try:
        support = self.support
    except NotImplementedError:
        return
    if not bool(torch._is_all_true(support.check(value))):
        raise ValueError(
            f"the specified entries of value must lie in the support of {self}, {support}, found {value}"
        )
