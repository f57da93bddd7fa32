from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.errors import ExaminationError
from tests.unit.doctor.programs import batch, line_of, step_with


def test_a_gradient_alone_is_found_at_the_call_that_makes_it() -> None:
    """What the corpus does not have: a backward pass of the program's own."""
    report = mg.doctor.examine(step_with("gradient"), batch())
    (finding,) = (finding for finding in report.findings if finding.kind == "padding-leak")
    assert finding.code.startswith("kept = _Forgetful.apply("), str(report)
    assert finding.remedy
    assert finding.file.endswith("programs.py")


def test_a_quick_report_as_plain_data() -> None:
    report = mg.doctor.examine(step_with("mean"), batch(), quick=True)
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["ok"] is False
    assert plain["findings"][0]["line"] == line_of("mean")
    assert {tried["name"] for tried in plain["experiments"]} == {"padding-leak"}


def _leaks(b: Any) -> Tensor:
    return nn.functional.cross_entropy(TABLE(b["ids"]).mean(1), b["y"])


TABLE = nn.Embedding(9, 3)
UNMARKED = {"ids": torch.tensor([[5, 6, 7, 4], [8, 0, 0, 0], [3, 2, 0, 0]]), "y": torch.tensor([0, 2, 1])}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"quick": True}, "ids may be padded; add padding={'ids': 0}"),
        ({}, "ids may be padded; add padding={'ids': 0}"),
        (
            {"experiments": ["padding-leak"]},
            "padding-leak: no padding was recognised in the batch; add padding={key: mask}",
        ),
        ({"experiments": ["document-leak"]}, "document-leak: no documents were recognised"),
    ],
)
def test_possible_padding_that_was_not_examined_is_not_ok(given: dict[str, Any], why: str) -> None:
    report = mg.doctor.examine(_leaks, UNMARKED, **given)
    assert (report.verdict, report.ok, bool(report)) == ("incomplete", False, False)
    assert any(line.startswith(why) for line in report.unexamined), report.unexamined
    assert [part.role for part in report.inventory] == ["ids", "labels"]
    assert str(report).startswith("incomplete: nothing was found, but not all was examined")
    assert "not examined\n" in str(report)
    plain = report.as_dict()
    assert (plain["verdict"], plain["unexamined"]) == ("incomplete", report.unexamined)
    assert mg.doctor.examine(_leaks, UNMARKED, padding={"ids": 0}).kinds() == ["padding-leak"]


@pytest.mark.parametrize(
    ("step", "options", "words"),
    [
        (lambda b: b["x"].sum() * 0, {}, "depends on nothing that requires a gradient"),
        (lambda b: [b["x"].sum()], {}, "expected the loss, a tensor with one entry, found list"),
        (lambda b: b["x"].sum(1), {}, r"expected a loss with one entry, found shape \(4, 3\)"),
        (lambda _: None, {}, "it returned no loss"),
        (lambda _: nn.Parameter(torch.ones(())) * 2, {}, "does not depend on the batch"),
        (step_with("fixed"), {"padding": {"z": "mask"}}, "'z' is not a key of the batch; the batch has 'x', 'mask'"),
        (step_with("fixed"), {"padding": {"x": "y"}}, r"padding\['x'\] must be .* integers 0 and 1 .*, found"),
        (step_with("fixed"), {"padding": {"x": torch.ones(4, 7) > 0}}, r"\(4, 7\) does not fit .* \(4, 5, 3\)"),
        (step_with("fixed"), {"padding": {"x": "nothing"}}, "expected a Boolean tensor, the key of one"),
        (step_with("fixed"), {"padding": "mask"}, "expected a mapping from keys"),
        (step_with("fixed"), {"experiments": ["leaks"]}, "'leaks' is none of padding-leak"),
    ],
)  # fmt: skip
def test_invalid_steps_and_arguments_are_refused(step, options, words) -> None:
    with pytest.raises(ExaminationError, match=words):
        mg.doctor.examine(step, batch(), **options)


def test_a_nondeterministic_step_is_refused_with_its_source() -> None:
    layer, calls, own = nn.Linear(3, 1), [0.0], torch.Generator()

    def counting(b: dict[str, Tensor]) -> Tensor:
        calls[0] += 1
        return (layer(b["x"]) + calls[0]).square().mean()

    def drawing(b: dict[str, Tensor]) -> Tensor:
        noise = torch.randn(3, generator=own)
        return (layer(b["x"] + noise)).square().mean()

    with pytest.raises(ExaminationError, match=r"not deterministic.*first in add.*calls\[0\]"):
        mg.doctor.examine(counting, batch())
    with pytest.raises(ExaminationError, match=r"first in randn at .*generator=own"):
        mg.doctor.examine(drawing, batch())


@pytest.mark.parametrize("by_mask", [True, False])
def test_the_inventory_has_the_axes_of_the_tensors_that_were_given(by_mask: bool) -> None:
    real = torch.arange(5) < torch.tensor([[5], [2], [4]])
    ids, table = (torch.randint(1, 9, (3, 5)) * real).T.contiguous(), nn.Embedding(9, 1, padding_idx=0)

    def step(b: dict[str, Tensor]) -> Tensor:
        hidden = table(b["ids"]).squeeze(-1) * (b["ids"] != 0)
        return (hidden.sum(0) * b["labels"]).square().sum()

    given = {"ids": ids, "labels": torch.tensor([0.5, 1.0, 1.0])} | ({"mask": real} if by_mask else {})
    report = mg.doctor.examine(step, given)
    assert report.ok, report
    axes = {part.name: (part.shape, part.samples, part.positions) for part in report.inventory}
    assert axes["ids"] == ((5, 3), 1, 0)
    assert axes["labels"] == ((3,), 0, None)
    assert set(report.inventory[0].examined) == {"padding-leak", "padding-length", "order"}
    assert "samples  positions  examined by" in str(report)
