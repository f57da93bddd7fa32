"""A loop of one's own, twice: with the mean of the micro-batches' means, and with one denominator."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import maskgrad as mg

from .model import StressReader
from .words import Sample

__all__ = ["collate", "distance", "exact", "gradient", "mean_of_means", "whole_batch"]

MicroBatches = list[list[Sample]]
Way = Callable[[StressReader, MicroBatches], Tensor]

#: "input_ids" becomes jagged (B, T), "labels" a tensor (B,)
collate = mg.interop.collate_jagged


def exact(model: StressReader, micro_batches: MicroBatches) -> Tensor:
    """Gradients of the mean over all labels of the step; nothing is known beforehand about how many there are."""
    accumulator = mg.GradientAccumulator(model)
    for samples in micro_batches:
        accumulator.backward(model(**collate(samples))["loss"])
    loss: Tensor = accumulator.finish()
    return loss


def mean_of_means(model: StressReader, micro_batches: MicroBatches) -> Tensor:
    """What is usually written."""
    total = torch.zeros(())
    for samples in micro_batches:
        loss = model(**collate(samples))["loss"].mean() / len(micro_batches)
        loss.backward()
        total += (
            loss.detach().nan_to_num()
        )  # of words without labels: the mean of nothing, whose gradient is zero
    return total


def whole_batch(model: StressReader, micro_batches: MicroBatches) -> Tensor:
    """The truth, where memory allows it: all words of the step at once."""
    loss: Tensor = model(**collate([sample for samples in micro_batches for sample in samples]))[
        "loss"
    ].mean()
    loss.backward()
    return loss.detach()


def gradient(way: Way, model: StressReader, micro_batches: MicroBatches) -> Tensor:
    """All gradients of one step in a row; the model has none before and after."""
    way(model, micro_batches)
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return found


def distance(found: Tensor, truth: Tensor) -> float:
    """How far ``found`` is from ``truth``, in parts of its length."""
    return float((found - truth).norm() / truth.norm())
