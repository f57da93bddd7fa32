"""Lines of the backward pass: what runs there belongs to the line that made the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.doctor import operations
from maskgrad.doctor.recorder import Recorder
from tests.unit.doctor.programs import line_of


def _lines(mode: Recorder, operation: str) -> list[int]:
    """The lines that were written down for an operation of the backward pass."""
    return [
        event.place.line if event.place else 0
        for event in mode.events
        if event.backward and event.operation == operation
    ]


def _started() -> tuple[Recorder, Tensor]:
    """Everything that is computed from the tensor differs from its twin."""
    x, mode = torch.ones(2, 3, requires_grad=True), Recorder([], {})
    mode.set_twin(x.detach(), torch.full((2, 3), 2.0))
    return mode, x


def test_an_operation_and_its_backward_pass_have_one_line() -> None:
    mode, x = _started()
    with mode:
        y = x.tanh()  # tanh
        z = y.sigmoid()  # sigmoid
        with torch.no_grad():
            y.exp()
        z.sum().backward()
    assert _lines(mode, "tanh_backward") == [line_of("tanh", __file__)]
    assert _lines(mode, "sigmoid_backward") == [line_of("sigmoid", __file__)]


def test_a_write_into_a_view_keeps_its_line() -> None:
    mode, x = _started()
    with mode:
        y = x * 2
        y[0].tanh_()  # into the view
        torch.zeros(3).exp()
        y.sigmoid().sum().backward()
    assert _lines(mode, "tanh_backward") == [line_of("into the view", __file__)]
    # the copies around it are of a node that was made after the write
    assert set(_lines(mode, "clone") + _lines(mode, "copy_")) == {line_of("into the view", __file__)}


def test_accumulation_into_grad_has_no_line() -> None:
    mode, x = _started()
    x.grad = torch.zeros_like(x)
    with mode:
        x.tanh().sum().backward()
    assert _lines(mode, "add_") == [0]


def test_the_callers_of_a_shared_line_are_listed() -> None:
    """The one that forgot the mask is to be changed, not the function that both call."""
    head, mask = nn.Linear(3, 1), torch.arange(4) < torch.tensor([4, 2])[:, None]

    def pooled(x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            return x.mean(1)
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)

    def step(batch: dict[str, Tensor]) -> Tensor:
        right = pooled(head(batch["x"]), batch["mask"])
        wrong = pooled(head(batch["x"]))
        return (right - 2 * wrong).square().sum()

    (finding,) = mg.doctor.examine(step, {"x": torch.randn(2, 4, 3), "mask": mask}, quick=True).findings
    assert finding.code == "return x.mean(1)"
    assert finding.callers[0].endswith('wrong = pooled(head(batch["x"]))')
    assert f"called at {finding.callers[0]}" in str(finding)


def test_the_console_script_is_no_caller() -> None:
    def frame(file: str, source: str, **known: Any) -> Any:
        exec(compile(source, file, "exec"), known)
        return known["run"]

    command = str(Path(operations.__file__).parents[1] / "cli" / "main.py")
    line = frame(
        "/home/me/train.py",
        "def run():\n    return callers(Place('/home/me/train.py', 2))",
        **vars(operations),
    )
    caller = frame("/home/me/other.py", "def run():\n    return line()", line=line)
    app = frame(command, "def run():\n    return caller()", caller=caller)
    script = frame("/usr/local/bin/maskgrad", "def run():\n    return app()", app=app)
    assert [one.split(": ")[0] for one in script()] == ["/home/me/other.py:2"]
