"""Cross entropy of a linear layer's outputs."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from maskgrad.semantics.autocasting import cast
from maskgrad.semantics.contractions import linear
from maskgrad.semantics.entries import HALVES, Entries, Operand, converted, rearranged, values_of
from maskgrad.semantics.losses.cross_entropy import PATTERN, cross_entropy
from maskgrad.semantics.losses.reduction import loss_record


def linear_cross_entropy(
    input: Operand,
    linear_weight: Operand,
    target: Operand,
    *,
    reduction: str,
    linear_bias: Operand | None = None,
    weight: Operand | None = None,
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
) -> Operand:
    """``cross_entropy(linear(input, linear_weight, linear_bias), target)``.

    The logits are computed at once: ``options`` choose chunks of them, which give the same result.
    """
    shape = shape_of_logits(input, linear_weight, linear_bias)
    labelled = values_of(target).shape != shape
    if not labelled and ignore_index is not None:
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    ignored = -100 if ignore_index is None else ignore_index
    outputs = math.prod(shape[-1:] if values_of(input).ndim == 1 else shape[1:])
    rows = reshaped(linear_weight, (outputs, values_of(input).shape[-1]))
    bias = None if linear_bias is None else reshaped(linear_bias, (outputs,))
    masked = any(isinstance(operand, Entries) for operand in (input, rows, bias))
    outer: Any = linear if masked else F.linear
    logits = outer(input, rows, bias)
    logits, dtype = reshaped(logits, shape), values_of(logits).dtype
    if dtype in HALVES:
        logits, target, weight = cast((logits, target, weight), torch.float32)
    loss = cross_entropy(logits, target, reduction, weight, ignored, label_smoothing)
    return converted(loss, dtype)  # type: ignore[no-any-return]


def shape_of_logits(input: Operand, linear_weight: Operand, linear_bias: Operand | None) -> tuple[int, ...]:
    """The shape of the layer's outputs, under PyTorch's conditions."""
    x, w = values_of(input), values_of(linear_weight)
    if x.ndim not in (1, 2):
        raise RuntimeError(f"expected input with dimensionality 1 or 2, got {x.ndim}")
    if w.ndim < 2:
        raise RuntimeError(f"expected linear_weight with dimensionality at least 2, got {w.ndim}")
    if x.shape[-1] != w.shape[-1]:
        raise RuntimeError(
            "expected equal input and linear_weight last dimensions (in_features), "
            f"got {x.shape[-1]} and {w.shape[-1]}, respectively"
        )
    if linear_bias is not None and values_of(linear_bias).shape != w.shape[:-1]:
        raise RuntimeError(
            f"expected linear_bias shape {tuple(w.shape[:-1])}, got {tuple(values_of(linear_bias).shape)}"
        )
    if w.ndim > 2 and x.ndim == 1:
        raise RuntimeError(
            f"K-dimensional loss defined by linear_weight shape {tuple(w.shape)} requires batched input, "
            f"(N, {x.shape[-1]}), got unbatched input with shape {tuple(x.shape)}"
        )
    return (*x.shape[:-1], *w.shape[:-1])


def reshaped(operand: Any, shape: tuple[int, ...]) -> Any:
    """Reshape an operand, masked or plain."""
    return rearranged(operand, lambda part: part.reshape(shape))


# Since PyTorch 2.13.
GRADIENT = "that of cross_entropy, through the layer"
OPERATIONS = (
    (loss_record(F.linear_cross_entropy, linear_cross_entropy, GRADIENT, PATTERN, widens=False),)
    if hasattr(F, "linear_cross_entropy")
    else ()
)
