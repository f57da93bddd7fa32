"""Cross entropy of labels over the specified classes, on CPUs: the steps are in ``steps.py``."""

from __future__ import annotations

from torch import Tensor

from maskgrad.kernels.cpu.partition import partition, walkable
from maskgrad.kernels.cross_entropy.steps import bodies
from maskgrad.kernels.reductions import cpu as reductions
from maskgrad.kernels.softmax import cpu as softmax
from maskgrad.kernels.softmax import cpu_loops as loops


def _logsumexp(input: Tensor, mask: Tensor, dim: tuple[int]) -> tuple[Tensor, Tensor]:
    result, _, present = softmax.statistics(
        partition((walkable(input), mask), dim, loops.TILE), loops.LOGSUMEXP, False
    )
    return result, present


masked_cross_entropy, masked_cross_entropy_gradient = bodies(
    _logsumexp, softmax.masked_logsumexp_backward, reductions, raises=True
)
