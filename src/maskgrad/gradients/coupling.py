r"""Checking with one more cotangent, or a few backward passes, whether samples of a batch influence each other.

If samples are independent, a cotangent multiplied by a factor per sample gives gradients multiplied by the
same factors. Two tests use this:

- the quick one compares a single weighted pass with known gradients, up to rounding;
- the exact one, used if the quick one fails, compares passes whose weights are powers of two with a pass
  without weights. Multiplication by a power of two commutes with rounding, so independent samples give equal results,
  bit for bit, however noisy they are. Any two samples differ in at least one of its weights.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from maskgrad.errors import CoupledSamplesError
from maskgrad.gradients.backward_passes import BackwardPasses

__all__ = ["COUPLING", "directions", "quick_cotangent", "require_independent"]

#: values of the argument ``coupling``
COUPLING = ("check", "exact", "independent")
#: in units of the relative rounding error
_ROUNDING = 64
#: number of powers of two (of either sign) in the exact test; fewer for the small range of float16
_POWERS, _POWERS_OF_HALF = 8, 4
_GOLDEN, _PLASTIC = 0.6180339887498949, 0.7548776662466927


def directions(number: int, like: Tensor) -> Tensor:
    """Return distinct values (number,) of either sign between 1/2 and 1, without the global random state."""
    return _directions(number, like.device, like.dtype.to_real())


@functools.lru_cache(maxsize=32)
@torch.inference_mode(False)
def _directions(number: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    at = torch.arange(1, number + 1, dtype=torch.float64)
    size = (at * _GOLDEN).remainder(1.0).add_(1.0).mul_(0.5)
    signed = torch.where((at * _PLASTIC).remainder(1.0) < 0.5, -size, size)
    return signed.to(device, dtype)


def quick_cotangent(passes: BackwardPasses, combination: Tensor) -> Tensor | None:
    """Return the cotangent (B, *O) of the quick test, a weight for each sample times ``combination`` (*O).

    None if rounding is too coarse for it.
    """
    if _precision(passes) > torch.finfo(torch.float32).eps:
        return None
    output = passes.output
    return _times(combination.to(output.dtype).expand(output.shape), directions(output.shape[0], output))


def require_independent(
    passes: BackwardPasses,
    remedy: str,
    combination: Tensor,
    combined: list[Tensor | None],
    weighted: list[Tensor | None] | None,
) -> None:
    """Raise CoupledSamplesError if samples influence each other.

    Args:
        passes: through the graph.
        remedy: the end of the message.
        combination: a cotangent (*O), the same for all samples.
        combined: the gradients (B, *I) of that cotangent.
        weighted: those of :func:`quick_cotangent`; None: rounding is too coarse for it.
    """
    output = passes.output
    samples = output.shape[0]
    if samples < 2 or not output.numel():
        return
    if weighted is not None and _differing(passes, combined, weighted, directions(samples, output)) is None:
        return
    found = _coupled_exactly(passes, combination.to(output.dtype).expand(output.shape))
    if found is not None:
        raise CoupledSamplesError(
            f"the samples of the batch influence each other: a sample's part of {found} changes the outputs of "
            "others, as under BatchNorm in training mode, statistics over the batch, or negatives from the batch; "
            f"{remedy}"
        )


def _coupled_exactly(passes: BackwardPasses, cotangent: Tensor) -> str | None:
    plain = passes.one(cotangent)
    for weight in _powers_of_two(len(cotangent), cotangent):
        found = _differing(passes, plain, passes.one(_times(cotangent, weight)), weight)
        if found is not None:
            # Some kernels of accelerators add in a different order each time: unweighted differences prove nothing.
            again = passes.one(cotangent)
            noise = [
                None if a is None or b is None else _largest(a - b) for a, b in zip(plain, again, strict=True)
            ]
            found = _differing(passes, plain, passes.one(_times(cotangent, weight)), weight, noise)
        if found is not None:
            return found
    return None


def _differing(
    passes: BackwardPasses,
    expected: list[Tensor | None],
    weighted: list[Tensor | None],
    weight: Tensor,
    noise: list[Tensor | None] | None = None,
) -> str | None:
    """Return the first input whose gradients, divided by the weights, are not the expected ones."""
    tolerance = _precision(passes) * (_ROUNDING if _precision(passes) < 1e-4 else 1)
    for number, (known, found, node) in enumerate(zip(expected, weighted, passes.inputs, strict=True)):
        if known is None or found is None or not known.numel():
            continue
        own = (1 / weight).to(device=found.device, dtype=found.dtype.to_real())
        difference = _times(found, own).sub_(known)
        limits = torch.finfo(found.dtype)
        least: float | Tensor = 256 * limits.smallest_normal * limits.eps
        by_itself = None if noise is None else noise[number]
        if by_itself is not None:
            least = least + 64 * torch.nan_to_num(by_itself)
        if bool((_largest(difference) <= _largest(known) * tolerance + least).all()):
            continue
        # Ignore infinite values and NaN, which remain visible in the result.
        difference = torch.where(difference.isfinite(), difference, 0)
        size = torch.where(known.isfinite(), known, 0)
        if bool((_largest(difference) > _largest(size) * tolerance + least).any()):
            return node.name
    return None


def _precision(passes: BackwardPasses) -> float:
    """Return the coarsest relative rounding error of output and inputs."""
    tensors = [passes.output, *(node.plain for node in passes.inputs)]
    return max(torch.finfo(tensor.dtype).eps for tensor in tensors)


def _powers_of_two(samples: int, like: Tensor) -> Iterator[Tensor]:
    """Yield weights (B,) until any two samples differ in at least one of them.

    Each weight is a digit of the sample's index, in a base of as many digits as there are values.
    """
    powers = _POWERS_OF_HALF if like.dtype is torch.float16 else _POWERS
    number = torch.arange(samples)
    reach = 1
    while reach < samples:
        digit = torch.div(number, reach, rounding_mode="floor").remainder(2 * powers)
        values = torch.where(digit % 2 == 1, -1.0, 1.0) * 2.0 ** -torch.div(digit, 2, rounding_mode="floor")
        yield values.to(like.device, like.dtype.to_real())
        reach *= 2 * powers


def _times(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``x`` (B, ...) with each sample multiplied by its weight (B,)."""
    return x * weight.reshape(-1, *(1,) * (x.ndim - 1))


def _largest(x: Tensor) -> Tensor:
    """Return the largest magnitude in each sample, (B,)."""
    return x.reshape(x.shape[0], -1).abs().amax(1)  # ten times as fast as the norm of order infinity
