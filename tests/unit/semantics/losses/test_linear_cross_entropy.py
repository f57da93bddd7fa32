"""Cross entropy of a linear layer: as the layer and the loss one after the other, in chunks or not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import maskgrad as mg
from tests.poison import gradient, leaf, nan, on

pytestmark = pytest.mark.skipif(
    not hasattr(F, "linear_cross_entropy"), reason="this PyTorch has no linear_cross_entropy"
)


@pytest.mark.parametrize("chunked", [False, True])
def test_ignored_labels_and_classes_without_weights_take_no_part(chunked: bool) -> None:
    """Sample 1 has no entries, 3 an ignored label, 4 a masked one; class 1 has no weights."""
    x = leaf([1.0, 2.0, 0.5], [nan] * 3, [-1.0, 0.0, 2.0], [1.0, 1.0, 1.0], [2.0, 1.0, 0.0])
    rows, classes = on([1], [0], [1], [1], [1]).expand(5, 3), on([1], [0], [1], [1]).expand(4, 3)
    weight = torch.where(classes, torch.randn(4, 3).type_as(x), nan)
    bias, importance = torch.randn(4).type_as(x), leaf(1.0, 2.0, 3.0, 4.0).detach()
    labels = mg.masked(torch.tensor([3, 0, 0, 2, 99]), on(1, 1, 1, 1, 0))
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2) if chunked else None
    found = F.linear_cross_entropy(
        mg.masked(x, rows), mg.masked(weight, classes), labels, linear_bias=bias, weight=importance,
        ignore_index=2, reduction="none", options=options,
    )  # fmt: skip
    assert found.mask.tolist() == [True, False, True, False, False]
    there = [0, 2, 3]
    logits = x[[0, 2]] @ weight[there].T + bias[there]
    expected = F.cross_entropy(logits, torch.tensor([2, 0]), importance[there], reduction="none")
    torch.testing.assert_close(found.compressed(), expected)
    torch.testing.assert_close(gradient(found.mean(), x), gradient(expected.mean(), x))
