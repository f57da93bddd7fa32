"""Padding is recognised: from the batch, from tables with ``padding_idx``, from modules that are told of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import maskgrad as mg
from maskgrad.doctor.padding import as_mask, is_one_piece, layouts
from maskgrad.errors import ExaminationError
from tests.unit.doctor.programs import recognised

LENGTHS = torch.tensor([9, 4, 6, 2])
MASK = torch.arange(9) < LENGTHS[:, None]
IDS = torch.randint(1, 20, (4, 9), generator=torch.Generator().manual_seed(0)).masked_fill(~MASK, 0)
X = torch.ones(4, 9, 3)


@pytest.mark.parametrize(
    ("batch", "key"),
    [
        ({"x": X, "attention_mask": MASK.long()}, "x"),
        ({"x": X, "src_key_padding_mask": ~MASK}, "x"),
        ({"x": X, "lengths": LENGTHS}, "x"),
        ((X, LENGTHS), 0),
        ((X, MASK), 0),
        ({"x": mg.masked(torch.ones(4, 9), MASK)}, "x"),
        ({"labels": torch.ones(4, 9).long().masked_fill(~MASK, -100)}, "labels"),
        ({"y": torch.ones(4, 9).masked_fill(~MASK, torch.nan)}, "y"),
    ],
)
def test_padding_is_recognised(batch: Any, key: Any) -> None:
    (padding,) = recognised(batch, None)
    assert padding.key == key
    assert torch.equal(padding.mask.expand(4, 9), MASK)


def test_attention_masks_and_masks_of_observed_values_are_of_nothing_else() -> None:
    square = torch.ones(2, 4, 4).tril() > 0
    assert recognised({"pairs": torch.ones(2, 4, 4, 8), "attention_mask": square}, None) == []
    for shape in ((2, 4), (2, 4, 3)):
        observed = torch.ones(shape) > 0
        observed[1, 2:] = False
        batch = {"past_values": torch.ones(shape), "past_observed_mask": observed}
        batch |= {"past_time_features": torch.ones(2, 4, 5), "future_values": torch.ones(shape)}
        assert [padding.key for padding in recognised(batch, None)] == ["past_values"]


@pytest.mark.parametrize("given", [0, MASK, "mask", "~pad", "size"])
def test_ways_to_say_it(given: Any) -> None:
    batch = {"ids": IDS, "mask": MASK, "pad": ~MASK, "size": LENGTHS}
    (padding,) = recognised(batch, {"ids": given})
    assert torch.equal(padding.entries(IDS), MASK)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (~MASK, "True means real, not padding; invert it, padding={'ids': ~mask}"),
        ("pad", "invert it, padding={'ids': '~pad'}"),
        ("~size", "found the entry 9; use"),
        (MASK[0], r"shape \(9,\) does not fit .*leading dimensions, such as \(4,\)"),
    ],
)
def test_ways_that_are_refused(given: Any, words: str) -> None:
    with pytest.raises(ExaminationError, match=words):
        recognised({"ids": IDS, "pad": ~MASK, "size": LENGTHS}, {"ids": given})


def test_integers_of_samples_and_masks_of_the_leading_dimensions_are_of_whole_samples() -> None:
    batch = {"x": torch.randn(4, 4), "kept": torch.tensor([1, 0, 1, 1])}
    for given in ("kept", batch["kept"] > 0):
        (samples,) = recognised(batch, {"x": given})
        assert samples.entries(batch["x"]).tolist() == [[True] * 4, [False] * 4, [True] * 4, [True] * 4]


@pytest.mark.parametrize("padding_idx", [0, None])
@pytest.mark.parametrize("right", [False, True])
def test_the_commonest_script(right: bool, padding_idx: int | None) -> None:
    """The table says what padding is, and if it does not, the mask of a module does; the batch has no mask."""
    torch.manual_seed(0)
    embed, head = nn.Embedding(20, 8, padding_idx=padding_idx), nn.Linear(8, 3)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def step(b: dict[str, Tensor]) -> Tensor:
        pad = b["ids"] == 0
        hidden = layer(embed(b["ids"]), src_key_padding_mask=pad)
        mean = (hidden * ~pad[..., None]).sum(1) / (~pad).sum(1, True) if right else hidden.mean(1)  # leak
        return F.cross_entropy(head(mean), b["y"])

    report = mg.doctor.examine(step, {"ids": IDS, "y": torch.arange(4) % 3}, quick=True)
    assert [finding.code.endswith("# leak") for finding in report.findings] == [True] * (not right)
    how = report.inventory[0].recognised
    assert how.startswith("padding_idx=0" if padding_idx == 0 else "the argument src_key")
    assert not report.unexamined


def test_the_mask_of_the_source_says_nothing_of_the_target() -> None:
    """Both have as many positions, and the target is not padded."""
    torch.manual_seed(0)
    embed, model = nn.Embedding(20, 8), nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

    def step(b: dict[str, Tensor]) -> Tensor:
        masks = dict.fromkeys(("src_key_padding_mask", "memory_key_padding_mask"), b["source"] == 0)
        return model(embed(b["source"]), embed(b["target"]), **masks)[..., :3].square().mean()

    report = mg.doctor.examine(step, {"source": IDS, "target": torch.randint(1, 20, (4, 9))}, quick=True)
    assert report.ok, str(report)
    assert [part.examined for part in report.inventory] == [("padding-leak",), ()]


@pytest.mark.parametrize("first", [True, False])
def test_lengths_that_are_packed(first: bool) -> None:
    x, lstm, head = torch.randn(4, 9, 3) * MASK[..., None], nn.LSTM(3, 8, batch_first=first), nn.Linear(3, 8)

    def step(batch: dict[str, Tensor]) -> Tensor:
        x = batch["x"] if first else batch["x"].transpose(0, 1)
        _, (state, _) = lstm(pack_padded_sequence(x, LENGTHS, first, enforce_sorted=False))
        return (state[0] + head(batch["x"].mean(1))).square().mean()

    report = mg.doctor.examine(step, {"x": x}, quick=True)
    assert report.inventory[0].recognised == "the lengths of pack_padded_sequence"
    assert report.kinds() == ["padding-leak"]


def test_a_mask_with_positions_first_lies_on_data_with_samples_first() -> None:
    told = as_mask(MASK.T)
    assert told is not None
    assert any(laid.turned and torch.equal(laid.in_order(), MASK) for laid in layouts(told, X))


def test_an_image_is_one_piece_in_any_corner_and_not_in_the_middle() -> None:
    for rows, columns, whole in (
        ((0, 2), (0, 3), 1),
        ((2, 4), (3, 5), 1),
        ((0, 2), (2, 5), 1),
        ((1, 3), (1, 4), 0),
    ):
        real = torch.zeros(1, 4, 5, dtype=torch.bool)
        real[:, slice(*rows), slice(*columns)] = True
        assert is_one_piece(real) == bool(whole)
