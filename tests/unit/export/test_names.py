"""Names in a graph: those that are wanted, and nothing else under them."""

from __future__ import annotations

import onnx_ir
import pytest

from maskgrad.export.ports import name_ports


@pytest.fixture
def model() -> onnx_ir.Model:
    """relu(x), twice, and a number, in a graph without an order of names."""
    x = onnx_ir.Value(name="x", shape=onnx_ir.Shape(["s1", "s11", "2*s1 + s11", 4]))
    one = onnx_ir.tensor([1.0], name="one")
    number = onnx_ir.Value(name="one", const_value=one, shape=onnx_ir.Shape([1]))
    first = onnx_ir.node("Relu", [x], name="first")
    first.outputs[0].name, first.outputs[0].shape = "relu", onnx_ir.Shape(["s11", None])
    second = onnx_ir.node("Add", [first.outputs[0], number], name="second")
    second.outputs[0].name = "sum"
    graph = onnx_ir.Graph(
        [x], [second.outputs[0], number], nodes=[first, second], initializers=[number], name="graph"
    )
    return onnx_ir.Model(graph, ir_version=10)


def test_what_has_the_name_of_a_port_gives_way(model: onnx_ir.Model) -> None:
    name_ports(model, ["relu"], ["x", "sum"])
    assert [value.name for value in (*model.graph.inputs, *model.graph.outputs)] == ["relu", "x", "sum"]
    assert model.graph[0].outputs[0].name == "relu_1"
    assert list(model.graph.initializers) == ["sum"]
    name_ports(model, ["a"], ["relu_1", "relu_1_1"])
    assert model.graph[0].outputs[0].name == "relu_1_2"
