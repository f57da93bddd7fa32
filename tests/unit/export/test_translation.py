"""What ONNX Runtime computes with the wrong shape."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch

import maskgrad as mg
from maskgrad.export.verification import Session


def test_reductions_of_an_empty_batch_have_the_right_shape(tmp_path: Path) -> None:
    """Inside a branch, too."""
    path = tmp_path / "model.onnx"

    def model(x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen = torch.cond(k.all(), lambda x: x.sum(-1), lambda x: x.amax(-1), (x,))
        parts = x.sum(-1), x.amax((-1, -2)), x.argmax(-1), x.mean(-2, keepdim=True)
        return *parts, torch.einsum("bij->bj", x), chosen

    mg.onnx.export(model, (torch.randn(2, 4, 5), torch.tensor(True)), path)
    for rows, chosen in ((0, True), (3, False), (3, True)):
        x, k = torch.randn(rows, 4, 5), torch.tensor(chosen)
        expected = [*model(x, ~k)[:-1], x.sum(-1) if chosen else x.amax(-1)]
        for one, other in zip(Session(path)([x, k]), expected, strict=True):
            torch.testing.assert_close(one, other)
    graph = onnx.load(path).graph
    used = {name for node in graph.node for name in node.input} | {port.name for port in graph.output}
    assert {tensor.name for tensor in graph.initializer} <= used
    assert not [node for node in graph.node if node.op_type == "Einsum"]


def test_a_loop_without_a_number_of_turns(tmp_path: Path) -> None:
    from torch._higher_order_ops import while_loop

    path = tmp_path / "model.onnx"

    def model(x: torch.Tensor) -> torch.Tensor:
        def turn(i: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, total * 2 + total.sum(-1, keepdim=True)

        return while_loop(lambda i, _: i < 3, turn, (torch.tensor(0), x))[1]

    mg.onnx.export(model, torch.randn(2, 4), path)
    x = expected = torch.randn(3, 4)
    for _ in range(3):
        expected = expected * 2 + expected.sum(-1, keepdim=True)
    torch.testing.assert_close(Session(path)([x])[0], expected)
