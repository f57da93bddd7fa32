"""Checking with a few backward passes whether samples of a batch influence each other.

If they do not, a cotangent with a factor for each sample gives gradients with the same factors. The factors are powers
of two, which commute with rounding: independent samples give equal results however noisy they are. Any two samples
differ in the factor of at least one pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from maskgrad.errors import CoupledSamplesError
from maskgrad.gradients.batch_nodes import Node, backward_pass

__all__ = ["require_independent"]

#: in units of the relative rounding error
_ROUNDING = 64
#: number of powers of two (of either sign); fewer for the small range of float16
_POWERS, _POWERS_OF_HALF = 16, 4


def require_independent(output: Tensor, inputs: Sequence[Node]) -> None:
    """Raise CoupledSamplesError if samples influence each other between ``inputs`` and ``output`` (B, *O)."""
    if output.shape[0] < 2 or not output.numel():
        return
    found = _coupled_input(output, inputs)
    if found is not None:
        raise CoupledSamplesError(
            f"the samples of the batch influence each other: a sample's part of {found} changes the outputs of "
            "others, as under BatchNorm in training mode, statistics over the batch, or negatives from the batch; "
            "coupling='independent' gives the derivative of each output's sum over the batch, "
            "torch.autograd.functional.jacobian that by all samples"
        )


def _coupled_input(output: Tensor, inputs: Sequence[Node]) -> str | None:
    """Return the name of the first input whose gradients, divided by the weights, are not the expected ones."""
    generator = torch.Generator().manual_seed(0)  # the global random state does not change
    mixture = torch.rand(output.shape[1:], generator=generator).add_(0.5)
    cotangent = mixture.to(output.device, output.dtype).expand(output.shape)
    plain = backward_pass(output, inputs, cotangent)
    tolerance = max(torch.finfo(tensor.dtype).eps for tensor in (output, *(node.plain for node in inputs)))
    tolerance *= _ROUNDING if tolerance < 1e-4 else 1
    for weight in _powers_of_two(len(cotangent), cotangent):
        weighted = backward_pass(output, inputs, _times(cotangent, weight))
        for known, found, node in zip(plain, weighted, inputs, strict=True):
            if known is None or found is None or not known.numel():
                continue
            difference = _times(found, (1 / weight).to(found.device, found.dtype.to_real())) - known
            least = 256 * torch.finfo(found.dtype).tiny * torch.finfo(found.dtype).eps
            # Ignore infinite values and NaN, which remain visible in the result.
            difference = torch.where(difference.isfinite(), difference, 0)
            size = torch.where(known.isfinite(), known, 0)
            if bool((_largest(difference) > _largest(size) * tolerance + least).any()):
                return node.name
    return None


def _powers_of_two(samples: int, like: Tensor) -> Iterator[Tensor]:
    """Yield weights (B,), digits of the samples' indices, until any two samples differ in at least one of them."""
    powers = _POWERS_OF_HALF if like.dtype is torch.float16 else _POWERS
    number = torch.arange(samples)
    reach = 1
    while reach < samples:
        digit = torch.div(number, reach, rounding_mode="floor").remainder(2 * powers)
        values = torch.where(digit % 2 == 1, -1.0, 1.0) * 2.0 ** -torch.div(digit, 2, rounding_mode="floor")
        yield values.to(like.device, like.dtype.to_real())
        reach *= 2 * powers


def _times(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight.reshape(-1, *(1,) * (x.ndim - 1))


def _largest(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1).abs().amax(1)  # ten times as fast as the norm of order infinity
