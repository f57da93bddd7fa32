"""The commonest script: ids padded with 0, a test for 0 in the model, a table with ``padding_idx``, and no mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import maskgrad as mg
from maskgrad.doctor.inferred import padded_ids
from maskgrad.errors import ExaminationError
from tests.unit.doctor.programs import recognised

LENGTHS = torch.tensor([9, 4, 6, 2])
MASK = torch.arange(9) < LENGTHS[:, None]
IDS = torch.randint(1, 20, (4, 9), generator=torch.Generator().manual_seed(0)).masked_fill(~MASK, 0)
LABELS = torch.tensor([0, 1, 2, 0])


class Model(nn.Module):
    """An encoder that is told of padding, and a mean that may be."""

    def __init__(self, pool: Callable[[Tensor, Tensor], Tensor], padding_idx: int | None = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.pool = nn.Embedding(20, 8, padding_idx=padding_idx), pool
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        pad = ids == 0
        hidden = self.layer(self.embed(ids), src_key_padding_mask=pad)
        return self.head(self.pool(hidden, pad))  # type: ignore[no-any-return]


def wrong(hidden: Tensor, _: Tensor) -> Tensor:
    return hidden.mean(1)  # the leak


def right(hidden: Tensor, pad: Tensor) -> Tensor:
    return (hidden * ~pad[..., None]).sum(1) / (~pad).sum(1, keepdim=True)


@pytest.mark.parametrize("padding_idx", [0, None])
def test_the_commonest_script(padding_idx: int | None) -> None:
    """The table says what padding is, and if it does not, the module's mask does."""
    batch = {"ids": IDS, "y": LABELS}
    for pool, code in ((wrong, ["return hidden.mean(1)  # the leak"]), (right, [])):
        model = Model(pool, padding_idx)
        report = mg.doctor.examine(
            lambda b, model=model: F.cross_entropy(model(b["ids"]), b["y"]), batch, quick=True
        )
        assert [finding.code for finding in report.findings] == code
        how = report.inventory[0].recognised
        assert how.startswith("padding_idx=0" if padding_idx == 0 else "the argument src_key")
        assert not report.unexamined


def test_the_commonest_script_is_watched() -> None:
    for pool, kinds in ((wrong, ["padding-leak"]), (right, [])):
        model = Model(pool)
        with mg.doctor.watch() as watched:
            for ids, label in torch.utils.data.DataLoader(list(zip(IDS, LABELS, strict=True)), batch_size=4):
                F.cross_entropy(model(ids), label).backward()
        assert watched.report.kinds() == kinds
        assert watched.report.experiments
        assert any("padding_idx=0" in part.recognised for part in watched.report.inventory)


@pytest.mark.parametrize(
    ("ids", "real"),
    [
        ([[1, 2, 0], [3, 0, 0]], [[1, 1, 0], [1, 0, 0]]),
        ([[0, 1, 2], [0, 0, 3]], [[0, 1, 1], [0, 0, 1]]),
        ([[0, 1, 0], [2, 2, 2]], [[0, 1, 0], [1, 1, 1]]),  # on both sides
        ([[1, 0, 2], [3, 0, 0]], None),  # an ordinary id
        ([[1, 2], [3, 4]], None),
        ([[0, 0], [0, 0]], None),
    ],
)
def test_ids_that_are_padded(ids: list[list[int]], real: list[list[int]] | None) -> None:
    found = padded_ids(torch.tensor(ids), 0)
    assert (None if found is None else found.int().tolist()) == real


@pytest.mark.parametrize("given", [0, MASK, ~MASK, "mask", "~pad", "lengths"])
def test_ways_to_say_it(given: Any) -> None:
    batch = {"ids": IDS, "mask": MASK, "pad": ~MASK, "lengths": LENGTHS}
    if given is not None and isinstance(given, Tensor) and torch.equal(given, ~MASK):
        with pytest.raises(
            ExaminationError, match=r"True means real, not padding; invert it, padding={'ids': ~mask}"
        ):
            recognised(batch, {"ids": given})
        return
    (padding,) = recognised(batch, {"ids": given})
    assert torch.equal(padding.entries(IDS), MASK)


def test_a_mask_of_padding_is_questioned() -> None:
    batch = {"x": torch.randn(4, 9, 3) * MASK[..., None], "pad": ~MASK}
    with pytest.raises(ExaminationError, match=r"invert it, padding={'x': '~pad'}"):
        recognised(batch, {"x": "pad"})
    (padding,) = recognised(batch, {"x": "~pad"})
    assert torch.equal(padding.mask, MASK)


def test_tables_that_stand_alone_are_named_as_parameters() -> None:
    embed, head = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 3)
    with mg.doctor.watch() as watched:
        head(embed(input=IDS).mean(1)).square().sum().backward()
    (finding,) = watched.report.findings
    assert "leaf" not in finding.message


def test_the_mask_of_the_source_says_nothing_of_the_target() -> None:
    """Both have as many positions, and the target is not padded."""
    torch.manual_seed(0)
    embed, model = nn.Embedding(20, 8), nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

    def step(b: dict[str, Tensor]) -> Tensor:
        pad = b["source"] == 0
        out = model(
            embed(b["source"]), embed(b["target"]), src_key_padding_mask=pad, memory_key_padding_mask=pad
        )
        return out[..., :3].square().mean()  # type: ignore[no-any-return]

    report = mg.doctor.examine(step, {"source": IDS, "target": torch.randint(1, 20, (4, 9))}, quick=True)
    assert report.ok, str(report)
    assert [part.examined for part in report.inventory] == [("padding-leak",), ()]


def test_integers_of_samples_are_a_mask_of_them_or_lengths() -> None:
    batch = {"x": torch.randn(4, 9), "kept": torch.tensor([1, 0, 1, 1]), "size": LENGTHS}
    (samples,) = recognised(batch, {"x": "kept"})
    assert samples.entries(batch["x"]).all(1).tolist() == [True, False, True, True]
    (lengths,) = recognised(batch, {"x": "size"})
    assert torch.equal(lengths.mask, MASK)
    with pytest.raises(ExaminationError, match="found the entry 9; use"):
        recognised(batch, {"x": "~size"})


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("is_sorted", [True, False])
def test_lengths_that_are_packed(first: bool, is_sorted: bool) -> None:
    """The last output of an LSTM is that of a shorter sequence's padding, unless it is packed."""
    torch.manual_seed(0)
    rows = LENGTHS.argsort(descending=True) if is_sorted else torch.arange(4)
    x, lengths = (torch.randn(4, 9, 3) * MASK[..., None])[rows], LENGTHS[rows]
    lstm, head = nn.LSTM(3, 8, batch_first=first), nn.Linear(3, 8)

    def step(batch: dict[str, Tensor], leak: bool) -> Tensor:
        x = batch["x"] if first else batch["x"].transpose(0, 1)
        packed = pack_padded_sequence(x, lengths, first, enforce_sorted=is_sorted)
        _, (state, _) = lstm(packed)
        return (state[0] + head(batch["x"].mean(1)) if leak else state[0]).square().mean()

    for leak in (True, False):
        report = mg.doctor.examine(lambda batch, leak=leak: step(batch, leak), {"x": x}, quick=True)
        assert report.inventory[0].recognised == "the lengths of pack_padded_sequence"
        assert report.kinds() == ["padding-leak"] * leak
