"""Running a call: its result or exception, and the gradients for random cotangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.laws.any_type.comparison import parts_of

__all__ = ["attempt", "cotangents_for", "dense", "gradients"]


def cotangents_for(values: Any, masks: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Random gradients for the differentiable results, zero where unspecified; the same in every run."""
    generator = torch.Generator().manual_seed(1)
    found: list[Tensor | None] = []
    for part, mask in zip(parts_of(values), masks, strict=True):
        if mask is None or not part.requires_grad:
            found.append(None)
            continue
        noise = torch.randn(part.shape, generator=generator, dtype=torch.float64)
        if part.is_complex():
            noise = torch.complex(noise, torch.randn(part.shape, generator=generator, dtype=torch.float64))
        found.append(torch.where(mask, noise.to(part.dtype), 0))
    return found


def gradients(
    parts: Sequence[Tensor], leaves: Sequence[Tensor], cotangents: Sequence[Tensor | None], **options: bool
) -> list[Tensor | None]:
    """The gradient of each leaf; None for unused ones; ``options`` are those of ``torch.autograd.grad``."""
    pairs = [
        (part, cotangent) for part, cotangent in zip(parts, cotangents, strict=True) if cotangent is not None
    ]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if not pairs or not wanted:
        return [None] * len(leaves)
    ends, weights = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(ends, wanted, weights, allow_unused=True, **options))
    return [dense(next(found)) if leaf.requires_grad else None for leaf in leaves]


def dense(gradient: Tensor | None) -> Tensor | None:
    """Convert to dense, as embeddings have sparse gradients."""
    return gradient if gradient is None or gradient.layout == torch.strided else gradient.to_dense()


def attempt(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return the result, or the exception."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return error
