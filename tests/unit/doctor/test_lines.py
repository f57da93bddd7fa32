"""Which line is named: that of the node of a backward pass, that of the caller, that of an installed package."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.doctor.recorder import Recorder
from tests.unit.doctor.programs import line_of

BATCH = {"x": torch.ones(2, 3, 4), "mask": torch.arange(3) < torch.tensor([3, 1])[:, None]}


def test_an_operation_and_its_backward_pass_have_one_line() -> None:
    """Also that of a write into a view; accumulation into grad has none."""
    x, mode = torch.ones(2, 3, requires_grad=True), Recorder([], {})
    x.grad = torch.zeros_like(x)
    # everything that is computed from the tensor differs from its twin
    mode.set_twin(x.detach(), torch.full((2, 3), 2.0))
    with mode:
        y = x * 2
        y[0].tanh_()  # into the view
        z = y.sigmoid()  # sigmoid
        with torch.no_grad():
            y.exp()
        z.sum().backward()
    lines: dict[str, set[int]] = {}
    for event in mode.events:
        if event.backward:
            lines.setdefault(event.operation, set()).add(event.place.line if event.place else 0)
    assert lines["sigmoid_backward"] == {line_of("sigmoid", __file__)}
    # the copies around a write are of a node that was made after it
    assert lines["tanh_backward"] == lines["clone"] == lines["copy_"] == {line_of("into the view", __file__)}
    assert lines["add_"] == {0}


def test_the_callers_of_a_shared_line_are_listed() -> None:
    """The one that forgot the mask is to be changed, not the function that both call."""
    head = nn.Linear(4, 1)

    def pooled(x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return x.mean(1)
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    def step(batch: dict[str, Tensor]) -> Tensor:
        right = pooled(head(batch["x"]), batch["mask"])
        wrong = pooled(head(batch["x"]))
        return (right - 2 * wrong).square().sum()

    (finding,) = mg.doctor.examine(step, BATCH, quick=True).findings
    assert finding.code == "return x.mean(1)"
    assert finding.callers[0].endswith('wrong = pooled(head(batch["x"]))')
    assert f"called at {finding.callers[0]}" in str(finding)


def test_samples_one_by_one_are_no_positions_one_by_one() -> None:
    """Padding may be in a sample that is selected; the mean over it is the mistake."""
    layer, data = nn.Linear(4, 1), torch.randn(3, 5, 4)
    batch = {"x": data, "mask": torch.arange(5) < torch.tensor([5, 2, 3])[:, None]}

    def step(b: Any) -> Tensor:
        samples = [b["x"][place] for place in range(3)]
        return torch.stack([layer(one).square().mean() for one in samples]).mean()  # LEAK

    (finding,) = mg.doctor.examine(step, batch, experiments=["padding-leak"]).findings
    assert finding.code.endswith("# LEAK")
