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


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("chunked", [False, True])
def test_samples_without_features_are_deleted(reduction: str, chunked: bool) -> None:
    arguments = case(input=on([1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 1, 1]))
    target = mg.masked(torch.where(on(1, 1, 1, 1, 0), LABELS, -7), on(1, 1, 1, 1, 0))
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=2) if chunked else None
    x = arguments["input"]
    loss = F.linear_cross_entropy(**arguments, target=target, reduction=reduction, options=options)
    kept = [0, 2, 3]
    logits = x.filled(0)[kept] @ arguments["linear_weight"].T + arguments["linear_bias"]
    expected = F.cross_entropy(logits, LABELS[kept], reduction=reduction)
    if reduction == "none":
        a, b, c = expected.tolist()
        assert_entries(loss, [a, None, b, c, None])
    else:
        assert_entries(loss, expected.item())
    grad = gradient(loss, x)
    assert not grad[~x.mask].count_nonzero()
    assert not grad[[1, 4]].count_nonzero()


def test_chunks_know_weights_and_ignored_labels() -> None:
    arguments = case(input=on([1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 1, 1]))
    common = {"target": LABELS, "weight": torch.tensor([1.0, 2.0, 3.0, 4.0]).double(), "ignore_index": 2}
    chunked = F.linear_cross_entropy(
        **arguments, **common, options=nn.LinearCrossEntropyOptions(batch_chunk_size=2)
    )
    assert_entries(chunked, F.linear_cross_entropy(**arguments, **common).item())


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


def test_only_a_label_is_missing() -> None:
    target = mg.masked(LABELS, on(1, 0, 1, 1, 1))
    arguments = case()
    arguments["input"][1] = nan
    logits = F.linear(**{k.removeprefix("linear_"): v for k, v in arguments.items()})
    kept = target.mask
    expected = F.cross_entropy(logits[kept], LABELS[kept])
    assert_entries(F.linear_cross_entropy(**arguments, target=target), expected.item())


def test_halves_are_rounded_as_by_the_layer_and_the_loss() -> None:
    x, w = (value.bfloat16() for value in (torch.randn(5, 300), torch.randn(4, 300)))
    x = mg.masked(x, on(1, 1, 0, 1, 1)[:, None])
    found = F.linear_cross_entropy(x, w, LABELS, reduction="none")
    expected = F.cross_entropy(F.linear(x, w), LABELS, reduction="none")
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)


def test_mistakes_are_torchs() -> None:
    x = mg.masked(torch.zeros(2, 3))
    with pytest.raises(RuntimeError, match="in_features"):
        F.linear_cross_entropy(x, torch.zeros(4, 2), LABELS[:2])
    with pytest.raises(RuntimeError, match="linear_bias"):
        F.linear_cross_entropy(x, torch.zeros(4, 3), LABELS[:2], linear_bias=torch.zeros(3))
    with pytest.raises(RuntimeError, match="dimensionality 1 or 2"):
        F.linear_cross_entropy(mg.masked(torch.zeros(1, 2, 3)), torch.zeros(4, 3), LABELS[:2])
    with pytest.raises(RuntimeError, match="at least 2"):
        F.linear_cross_entropy(x, torch.zeros(3), LABELS[:2])
    with pytest.raises(RuntimeError, match="batched input"):
        F.linear_cross_entropy(x[0], torch.zeros(4, 2, 3), LABELS[:2])
    with pytest.raises(RuntimeError, match="probabilities"):
        F.linear_cross_entropy(x, torch.zeros(4, 3), torch.zeros(2, 4), ignore_index=1)
