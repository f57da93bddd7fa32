"""Cross entropy of a linear layer: as the layer and the loss one after the other, in chunks or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import maskgrad as mg
from tests.poison import assert_entries, gradient, nan, on

pytestmark = pytest.mark.skipif(
    not hasattr(F, "linear_cross_entropy"), reason="this PyTorch has no linear_cross_entropy"
)
LABELS = torch.tensor([3, 1, 0, 2, 1])


def case(**masks: torch.Tensor) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"input": (5, 3), "linear_weight": (4, 3), "linear_bias": (4,)}
    values = {
        key: torch.randn(shape, generator=generator, dtype=torch.float64) for key, shape in shapes.items()
    }
    for key, mask in masks.items():
        values[key] = mg.masked(torch.where(mask, values[key], nan).requires_grad_(), mask)
    return values


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_an_ignored_label_is_unspecified(chunked: bool, weighted: bool) -> None:
    arguments = case(input=on([1, 1, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]))
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0]).double() if weighted else None
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2) if chunked else None
    common = {"weight": weight, "ignore_index": 2, "reduction": "none"}
    x = arguments["input"]
    for target in (LABELS, mg.masked(LABELS, on(1, 1, 1, 1, 0))):
        kept = [0, 2, 4] if target is LABELS else [0, 2]
        found = F.linear_cross_entropy(**arguments, target=target, options=options, **common)
        logits = x.filled(0)[kept] @ arguments["linear_weight"].T + arguments["linear_bias"]
        expected = F.cross_entropy(logits, LABELS[kept], weight, reduction="none")
        assert found.mask.nonzero().squeeze(1).tolist() == kept
        torch.testing.assert_close(found.compressed(), expected)
        torch.testing.assert_close(gradient(found.mean(), x), gradient(expected.mean(), x))


def test_a_class_without_weights_takes_no_part() -> None:
    weight = torch.ones(4, 3).bool()
    weight[1] = False
    arguments = case(linear_weight=weight)
    loss = F.linear_cross_entropy(
        **arguments, target=LABELS, reduction="none", options=nn.LinearCrossEntropyOptions(batch_chunk_size=2)
    )
    kept = torch.tensor([0, 2, 3])
    logits = (
        arguments["input"] @ arguments["linear_weight"].filled(0)[kept].T + arguments["linear_bias"][kept]
    )
    rows = F.cross_entropy(logits, torch.tensor([2, 0, 0, 1, 0]), reduction="none").tolist()
    assert_entries(loss, [rows[0], None, rows[2], rows[3], None])
