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
    assert finding.code.startswith("kept: Tensor = _Forgetful.apply("), str(report)
    assert finding.remedy
    assert finding.file.endswith("programs.py")


def test_quick_makes_one_experiment() -> None:
    report = mg.doctor.examine(step_with("fixed"), batch(), quick=True)
    assert {tried.name for tried in report.experiments} == {"padding-leak"}


def test_masked_tensors_do_not_leak_even_nan() -> None:
    layer, b = nn.Linear(3, 1), batch()

    def step(given: dict[str, object]) -> Tensor:
        h = layer(given["x"])
        loss: Tensor = (h * h).mean()
        return loss

    report = mg.doctor.examine(step, {"x": mg.masked(b["x"], b["mask"][..., None])})
    assert report.ok, str(report)
    assert "nan-under-mask" in {tried.name for tried in report.experiments}


def _leaks(b: Any) -> Tensor:
    loss: Tensor = nn.functional.cross_entropy(TABLE(b["ids"]).mean(1), b["y"])
    return loss


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
    assert str(report).startswith("incomplete: nothing was found, but not all was examined")
    assert "not examined\n" in str(report)
    plain = report.as_dict()
    assert (plain["verdict"], plain["unexamined"]) == ("incomplete", report.unexamined)


def test_the_option_that_is_named_examines() -> None:
    assert mg.doctor.examine(_leaks, UNMARKED, padding={"ids": 0}).kinds() == ["padding-leak"]


@pytest.mark.parametrize("quick", [True, False])
def test_a_batch_without_padding_is_ok_if_anything_was_examined(quick: bool) -> None:
    ids = torch.tensor([[5, 6, 7, 4], [8, 1, 2, 3], [3, 2, 6, 7]])
    report = mg.doctor.examine(_leaks, {**UNMARKED, "ids": ids}, quick=quick)
    assert (report.verdict, report.unexamined) == ("ok", [])
    assert [part.role for part in report.inventory] == ["ids", "labels"]


def test_an_experiment_that_could_not_run_is_a_note() -> None:
    layer = nn.Linear(3 * 4, 1)

    def step(b: dict[str, Tensor]) -> Tensor:
        loss: Tensor = layer(b["x"].masked_fill(~b["mask"][..., None], 0.0).flatten(1)).mean()
        return loss

    given = {"x": torch.randn(2, 4, 3), "mask": torch.arange(4) < torch.tensor([[4], [2]])}
    report = mg.doctor.examine(step, given, experiments=["padding-length"])
    assert not report.ok
    assert any("the program fails: RuntimeError" in line for line in report.unexamined)


def test_dropout_and_other_seeded_numbers_are_no_findings() -> None:
    layer = nn.Linear(3, 3)

    def step(b: dict[str, Tensor]) -> Tensor:
        h = nn.functional.dropout(layer(b["x"]), 0.5) + torch.randn(3)
        h = h.masked_fill(~b["mask"][..., None], 0.0)
        return (h.sum(1) / b["mask"].sum(1, keepdim=True)).square().mean()

    assert mg.doctor.examine(step, batch()).ok


def test_a_report_as_plain_data() -> None:
    report = mg.doctor.examine(step_with("mean"), batch(), quick=True)
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["ok"] is False
    assert plain["findings"][0]["line"] == line_of("mean")


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
def test_invalid_steps_and_arguments_are_refused(step, options, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ExaminationError, match=words):
        mg.doctor.examine(step, batch(), **options)


def test_a_nondeterministic_step_is_refused_with_its_source() -> None:
    layer, calls = nn.Linear(3, 1), [0.0]

    def step(b: dict[str, Tensor]) -> Tensor:
        calls[0] += 1
        return (layer(b["x"]) + calls[0]).square().mean()

    with pytest.raises(ExaminationError, match=r"not deterministic.*first in add.*calls\[0\]"):
        mg.doctor.examine(step, batch())

    own = torch.Generator()

    def drawing(b: dict[str, Tensor]) -> Tensor:
        noise = torch.randn(3, generator=own)
        return (layer(b["x"] + noise)).square().mean()  # type: ignore[no-any-return]

    with pytest.raises(ExaminationError, match=r"first in randn at .*generator=own"):
        mg.doctor.examine(drawing, batch())


def test_gradients_of_leaves_that_the_step_makes_move_with_their_samples() -> None:
    """As in a gradient penalty: the leaf is the step's own, and has a row for each sample."""
    layer, given = nn.Linear(3, 1), batch()

    def step(b: dict[str, Tensor]) -> Tensor:
        x = b["x"].detach().requires_grad_()
        scores = layer(x).tanh().squeeze(-1).masked_fill(~b["mask"], 0.0)
        means = scores.sum(1) / b["mask"].sum(1)
        (gradient,) = torch.autograd.grad(means.sum(), x, create_graph=True)
        penalty = gradient.square().sum((1, 2)).sub(1).square()
        return (means - b["y"]).square().mean() + penalty.mean()

    report = mg.doctor.examine(step, given, experiments=["padding-leak", "padding-length", "order"])
    assert report.ok, str(report)
    assert {tried.name for tried in report.experiments} >= {"padding-length", "order"}


def test_the_inventory_has_the_axes_of_samples_and_positions() -> None:
    weight = torch.ones(3, requires_grad=True)
    x, mask = torch.randn(3, 2, 5), torch.arange(5) < torch.tensor([[5], [2], [4]])
    x.masked_fill_(~mask[:, None], 0.0)
    given = {"x": x, "mask": mask, "labels": torch.tensor([0, 1, 1])}
    report = mg.doctor.examine(lambda b: (weight * b["x"].sum((1, 2)) * b["labels"]).sum(), given)
    axes = {part.name: (part.samples, part.positions) for part in report.inventory}
    assert axes == {"x": (0, 2), "mask": (0, 1), "labels": (0, None)}
    assert "samples  positions  examined by" in str(report)


@pytest.mark.parametrize("by_mask", [True, False])
def test_the_inventory_has_the_axes_of_the_tensors_that_were_given(by_mask: bool) -> None:
    real = torch.arange(5) < torch.tensor([[5], [2], [4]])
    ids, table = (torch.randint(1, 9, (3, 5)) * real).T.contiguous(), nn.Embedding(9, 1, padding_idx=0)

    def step(b: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden = table(b["ids"]).squeeze(-1) * (b["ids"] != 0)
        return (hidden.sum(0) * b["labels"]).square().sum()

    given = {"ids": ids, "labels": torch.tensor([0.5, 1.0, 1.0])} | ({"mask": real} if by_mask else {})
    report = mg.doctor.examine(step, given)
    assert report.ok, report
    part = report.inventory[0]
    assert (part.shape, part.samples, part.positions) == ((5, 3), 1, 0)
    assert set(part.examined) == {"padding-leak", "padding-length", "order"}
