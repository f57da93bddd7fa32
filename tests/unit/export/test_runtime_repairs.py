"""What ONNX Runtime would get wrong."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

import maskgrad as mg


@pytest.mark.parametrize("rows", [0, 3])
def test_reductions_of_an_empty_batch_have_the_right_shape(rows: int, tmp_path: Path) -> None:
    from maskgrad.export.onnx_runtime import Session

    path = tmp_path / "model.onnx"

    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(-1), x.amax((-1, -2)), x.argmax(-1), x.mean(-2, keepdim=True), torch.einsum("bij->bj", x)

    mg.onnx.export(model, torch.randn(2, 4, 5), path)
    x = torch.randn(rows, 4, 5)
    for one, other in zip(Session(path)([x]), model(x), strict=True):
        torch.testing.assert_close(one, other)
    graph = onnx.load(path).graph
    used = {name for node in graph.node for name in node.input} | {port.name for port in graph.output}
    assert {tensor.name for tensor in graph.initializer} <= used
    assert not [node for node in graph.node if node.op_type == "Einsum"]
