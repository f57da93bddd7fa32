"""Cross entropy over the specified classes: PyTorch's of each position alone, its unspecified classes deleted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from maskgrad.kernels import KERNELS, use_kernels
from tests.unit.kernels.masks import MaskedSuite


class TestMaskedCrossEntropy(MaskedSuite):
    """Each label is a specified class, where there is one."""

    kernel = "masked_cross_entropy"
    variants = ((0.0,), (0.3,), (1.0,))
    keeps = False
    widens = True

    def takes(self, shape: tuple[int, ...], dim: tuple[int, ...]) -> bool:
        classes = min(len(shape), 2) - 1
        return bool(shape) and dim == (classes,) and shape[classes] > 0

    def where(self, mask: Tensor, dim: tuple[int, ...], keepdim: bool = False) -> Any:
        return mask, dim, (torch.rand(mask.shape) * mask).argmax(dim[0])

    def operands(self, shape: Sequence[int], where: Any, variant: Any) -> tuple[Tensor, ...]:
        return (torch.randn(tuple(shape)) * 3,)

    def call(self, operands: Sequence[Tensor], where: Any, variant: tuple[Any, ...]) -> Any:
        mask, _, labels = where
        return KERNELS[self.kernel](*operands, mask, labels, *variant)

    def groups(self, where: Any, shape: Sequence[int]) -> tuple[Tensor, list[int], list[int]]:
        index, sizes, _ = super().groups(where, shape)
        return index, sizes, list(where[2].shape)

    def beside(self, where: Any) -> tuple[Tensor, ...]:
        mask, (dim,), labels = where
        return (torch.zeros_like(mask).scatter(dim, labels.unsqueeze(dim), True),)

    def alone(self, x: Tensor, chosen: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        label = chosen.to(torch.uint8).argmax()
        return F.cross_entropy(x, label, label_smoothing=smoothing), x.detach().logsumexp(0)

    def special(self) -> list[list[float]]:
        inf, nan = math.inf, math.nan
        return [[-inf, 0, 0], [0, -inf, 0], [nan, 0, 0], [-inf] * 3, [1, 2, 3]]

    def rows(self, matrix: Tensor) -> Iterator[tuple[Tensor, Any]]:
        for values in (matrix, matrix.repeat(1, 400)):
            mask = torch.ones_like(values, dtype=torch.bool)
            yield values, (mask, (1,), torch.zeros(len(values), dtype=torch.int64))

    def compare(self, found: Any, wanted: Any, nan: bool = False) -> None:
        """Of the logsumexp, which is for the derivative, only what is finite counts."""
        super().compare((found[0][:1], found[1]), (wanted[0][:1], wanted[1]), nan)

    test_mistakes_in_the_mask_are_named = None  # losses look for them


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_labels_with_gaps_in_memory_and_one_label_for_all(body: str) -> None:
    logits, mask = torch.randn(4, 30, 6), torch.ones(4, 30, 6, dtype=torch.bool)
    wide = torch.randint(30, (4, 12))
    for labels in (wide[:, ::2], torch.tensor(3).expand(4, 6)):
        with use_kernels(body):
            found, _ = KERNELS["masked_cross_entropy"](logits, mask, labels, 0.1)
        wanted = F.cross_entropy(logits, labels, reduction="none", label_smoothing=0.1)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_an_infinite_logit_surfaces_as_in_torch() -> None:
    inf = math.inf
    logits = torch.tensor([[inf, 0, 0], [0, inf, 0], [-inf, 0, 0], [0, 0, 0]], requires_grad=True)
    labels, mask = torch.zeros(4, dtype=torch.int64), torch.ones(4, 3, dtype=torch.bool)
    wanted = F.cross_entropy(logits, labels, reduction="none")
    with use_kernels("cpu"):
        found, _ = KERNELS["masked_cross_entropy"](logits, mask, labels, 0.0)
        slopes = [torch.autograd.grad(y.sum(), logits)[0] for y in (found, wanted)]
    torch.testing.assert_close(found, wanted, equal_nan=True)
    torch.testing.assert_close(*slopes, equal_nan=True)
