"""Where twins lose track, the step as it is, run with the garbage in its batch, says whether padding matters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg

MASK = torch.arange(12) < torch.tensor([3, 5, 7, 12])[:, None]
Step = Callable[[dict[str, Tensor]], Tensor]


def batch() -> dict[str, Tensor]:
    torch.manual_seed(0)
    ids, labels = torch.randint(1, 30, (4, 12)), torch.randint(0, 5, (4, 12))
    return {
        "input_ids": ids.masked_fill(~MASK, 0),
        "attention_mask": MASK,
        "labels": labels.masked_fill(~MASK, -100),
    }


def experts(capacity: int | None, *, as_lists: bool = False) -> Step:
    torch.manual_seed(1)
    embed, router, head = nn.Embedding(30, 16), nn.Linear(16, 3), nn.Linear(16, 5)
    layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def step(b: dict[str, Tensor]) -> Tensor:
        tokens = embed(b["input_ids"]).flatten(0, 1)
        weight, chosen = router(tokens).softmax(-1).max(-1)
        out = torch.zeros_like(tokens)
        if as_lists:
            order, sizes = chosen.sort(stable=True).indices, F.one_hot(chosen, 3).sum(0).tolist()
            places = order.split(sizes)
        else:
            places = [(chosen == number).nonzero()[:capacity, 0] for number in range(3)]  # places
        for at, layer in zip(places, layers, strict=True):
            out = out.index_add(0, at, layer(tokens[at]) * weight[at, None])
        return F.cross_entropy(head(out), b["labels"].flatten())

    return step


def test_padding_that_takes_the_places_of_an_expert_is_found() -> None:
    report = mg.doctor.examine(experts(4), batch(), experiments=["padding-leak"])
    (finding,) = report.findings
    assert finding.code.endswith("# places")
    assert "nonzero was not tracked" in finding.message
    assert mg.doctor.examine(experts(None), batch(), experiments=["padding-leak"]).ok
    # how many tokens each expert has is a Python list, which only the whole step has for the other padding
    report = mg.doctor.examine(experts(None, as_lists=True), batch(), experiments=["padding-leak"])
    assert report.ok, str(report)
    assert any("not confirmed: the step" in note.message for note in report.notes)


@pytest.mark.parametrize(
    ("count", "ok"),
    [
        (lambda ids: int((ids > 15).sum()), False),  # of garbage, too
        (lambda ids: int((ids > 0).sum()), True),  # a test for padding
        (lambda ids: int((ids != 0).sum()), True),
        (lambda ids: int(((ids > 15) & (ids > 0)).sum()), True),  # and one that leaves it out
    ],
)
def test_numbers_that_are_read(count: Callable[[Tensor], float], ok: bool) -> None:
    given, embed = batch(), nn.Embedding(30, 5)

    def step(b: dict[str, Tensor]) -> Tensor:
        logits = embed(b["input_ids"]).flatten(0, 1)
        return F.cross_entropy(logits, b["labels"].flatten(), reduction="sum") / count(b["input_ids"])

    # above 15 only where garbage may come from
    given["input_ids"][3] = torch.randint(16, 30, (12,))
    given["input_ids"][:3] = given["input_ids"][:3].clamp(max=14)
    report = mg.doctor.examine(step, given, experiments=["padding-leak"])
    assert report.ok is ok, str(report)


def test_an_unconfirmed_difference_is_a_note_and_the_report_is_incomplete() -> None:
    """A step that fails on any other batch: that the twins differ is all there is to say."""
    torch.manual_seed(0)
    x, layer = torch.randn(4, 12, 3), nn.Linear(3, 1)
    total = x.sum().item()

    def step(b: dict[str, Tensor]) -> Tensor:
        if b["x"].sum().item() != total:
            raise ValueError("another batch")
        return layer(b["x"].mean(1)).square().mean()

    given = {"x": x, "mask": MASK}
    report = mg.doctor.examine(step, given, padding={"x": "mask"}, experiments=["padding-leak"])
    assert (report.findings, report.verdict) == ([], "incomplete"), str(report)
    why = "the step fails on changed data (ValueError: another batch)"
    assert any(why in line for line in report.unexamined)
    notes = [note for note in report.notes if note.message.startswith("not confirmed: mean mixes padding")]
    assert notes[0].line
