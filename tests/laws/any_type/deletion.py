"""Calls along one dimension, and PyTorch's results after deleting the unspecified entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.laws.any_type.comparison import assert_close, assert_gradients, parts_of
from tests.laws.any_type.evaluation import attempt, cotangents_for, gradients

__all__ = ["ALONG", "REDUCED", "SHAPES", "Deletion", "assert_deleted", "deletions"]

SHAPES = ((3, 5), (2, 3, 4))

#: Operations along one dimension: arguments to try besides ``dim``.
ALONG: dict[str, tuple[dict[str, Any], ...]] = {
    "cumsum": ({}, {"dtype": torch.float64}),
    "cumprod": ({},),
    "logcumsumexp": ({},),
    "cummax": ({},),
    "cummin": ({},),
    "diff": ({}, {"n": 2}),
    "trapezoid": ({}, {"dx": 0.5}),
    "cumulative_trapezoid": ({},),
    "softmax": ({}, {"dtype": torch.float64}),
    "log_softmax": ({},),
    "nn.functional.softmin": ({},),
    "nn.functional.normalize": ({}, {"p": 1.0}, {"p": 3.0}),
    "sort": ({}, {"descending": True}),
    "argsort": ({}, {"descending": True}),
    "topk": ({"k": 1}, {"k": 2, "largest": False}),
    "kthvalue": ({"k": 1}, {"k": 2, "keepdim": True}),
    "median": ({}, {"keepdim": True}),
    "nanmedian": ({},),
    "mode": ({}, {"keepdim": True}),
    "quantile": ({"q": 0.3}, {"q": 0.5, "interpolation": "lower"}, {"q": 1.0, "keepdim": True}),
    "nanquantile": ({"q": 0.3}, {"q": 0.0, "interpolation": "midpoint"}),
}

#: The same for reductions.
REDUCED: dict[str, tuple[dict[str, Any], ...]] = {
    **dict.fromkeys(
        ("sum", "mean", "amax", "amin", "prod", "logsumexp", "nansum", "nanmean"), ({}, {"keepdim": True})
    ),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), ({}, {"correction": 0})),
    "linalg.vector_norm": ({}, {"ord": 1}, {"ord": float("inf")}),
}


class Deletion(NamedTuple):
    """One call along ``kwargs["dim"]``, or on all entries, for which masked entries might as well be deleted."""

    what: str
    x: Tensor
    mask: Tensor
    kwargs: dict[str, Any]

    def slices(self, part: Tensor) -> list[Tensor]:
        """Split a tensor, or a result without the reduced dimension, into slices along it."""
        dim = self.kwargs.get("dim")
        if dim is None:
            return [part.reshape(-1)]
        if part.ndim < self.x.ndim:
            part = part.unsqueeze(dim)
        return list(part.movedim(dim, -1).flatten(0, -2))

    def expected(self, function: Callable[..., Any], x: Tensor) -> Iterator[list[Tensor] | Exception | None]:
        """Results for the remaining entries of each slice; None if there are none."""
        kwargs = {**self.kwargs, "dim": 0} if "dim" in self.kwargs else self.kwargs
        for entries, present in zip(self.slices(x), self.slices(self.mask), strict=True):
            if not present.any():
                yield None
                continue
            result = attempt(function, (entries[present],), kwargs)
            yield result if isinstance(result, Exception) else parts_of(result)


def deletions(name: str, dtype: torch.dtype) -> Iterator[Deletion]:
    """The calls of an operation, each with a mask with one empty slice in each dimension."""
    generator = torch.Generator().manual_seed(0)
    for shape in SHAPES:
        x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        mask = torch.rand(shape, generator=generator) < 0.7
        for dim, size in enumerate(shape):
            if size > 2:
                mask.select(dim, size - 1).fill_(False)
        for kwargs in (*ALONG.get(name, ()), *REDUCED.get(name, ())):
            for dim in range(-1, len(shape)):
                yield Deletion(f"{shape}, dim {dim}, {kwargs}", x, mask, {**kwargs, "dim": dim})
        if name in REDUCED:
            yield Deletion(f"{shape}, all entries", x, mask, {})


def assert_deleted(
    deletion: Deletion,
    plain: Sequence[Tensor],
    masks: Sequence[Tensor],
    function: Callable[..., Any],
    leaf: Tensor,
    gradients_of: Callable[..., list[Tensor | None]] = gradients,
) -> None:
    """Assert that results and gradient are, slice by slice, those of the remaining entries.

    Positions (of a maximum, of what is sorted) are not compared: types may count them differently.
    """
    x = deletion.x.clone().requires_grad_(leaf.requires_grad)
    dimensions = (x.ndim, x.ndim - 1) if "dim" in deletion.kwargs else range(x.ndim + 1)
    for value in plain:
        assert value.ndim in dimensions, f"result of shape {tuple(value.shape)}"
        assert len(deletion.slices(value)) == len(deletion.slices(x)), f"result of shape {tuple(value.shape)}"
    found, right = [], []
    for i, expected in enumerate(deletion.expected(function, x)):
        if isinstance(expected, Exception):  # PyTorch needs more than the remaining entries
            continue
        for part, (value, mask) in enumerate(zip(plain, masks, strict=True)):
            known = deletion.slices(mask)[i]
            if expected is None:
                assert not known.any(), f"nothing is left of slice {i}, and its result is specified"
            elif value.is_floating_point():
                rest = expected[part].reshape(-1)
                left = int(known.sum())
                if rest.isnan().all() and not left:  # an estimate from too few entries
                    continue
                assert left == rest.numel(), f"slice {i}: {left} results instead of {rest.numel()}"
                found.append(deletion.slices(value)[i][known])
                right.append(rest)
    if not found:
        return
    result, wanted = torch.cat(found), torch.cat(right)
    assert_close(result, wanted, "what is left")
    if wanted.requires_grad:
        cotangents = cotangents_for([wanted], [torch.ones_like(wanted, dtype=torch.bool)])
        grads = gradients_of([result], [leaf], cotangents)
        assert_gradients(grads, gradients([wanted], [x], cotangents), "what is left")
