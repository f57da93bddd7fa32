"""What `mg.onnx.export` refuses; no file is left behind, and what was there stays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import maskgrad as mg
from tests.unit.export.holes import holey

ONES = torch.ones(2)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda x: x * x.amax().item(), "MaskedTensor.item"),
        (lambda x: x if x.sum() > 0 else -x, r"reading a value.*\(in <lambda>, test_onnx_refusals.py:\d+\)"),
        (lambda x: x * len([1 for row in x.tolist() for v in row if v]), "MaskedTensor.tolist"),
        (lambda x: x * torch.equal(x, x), "torch.equal"),
        (torch.special.bessel_j0, "bessel_j0.*ONNX has no operators"),
    ],
    ids=["item", "if of a number", "tolist", "equal", "bessel"],
)
def test_unsupported_models_are_refused_with_a_remedy(model: Any, words: str, path: Path) -> None:
    path.write_bytes(b"what was there before")
    with pytest.raises(mg.UnsupportedOperationError, match=words) as refused:
        mg.onnx.export(model, holey(3, 4), path)
    assert isinstance(refused.value, mg.errors.NotExportableError)
    assert "x.filled(value)" in str(refused.value) or "outside the exported model" in str(refused.value)
    assert path.read_bytes() == b"what was there before"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_divisor_of_an_average_is_refused_and_written_as_a_factor(path: Path) -> None:
    x = torch.rand(2, 3, 4, 6)
    with pytest.raises(mg.errors.NotExportableError, match=r"F\.avg_pool2d\(x, kernel_size\) \* \(entries"):
        mg.onnx.export(lambda x: F.avg_pool2d(x, 2, divisor_override=3), x, path, verify=False)
    torch.testing.assert_close(F.avg_pool2d(x, 2) * (4 / 3), F.avg_pool2d(x, 2, divisor_override=3))
    assert mg.onnx.export(lambda x: F.avg_pool2d(x, 2) * (4 / 3), mg.masked(x, x > 0.5), path).compared


def test_a_file_that_disagrees_is_not_put_in_its_place(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from maskgrad.export import decompositions

    broken = {**decompositions.table(), torch.ops.aten.cumprod.default: lambda x, dim: x.cumsum(dim)}
    monkeypatch.setattr(decompositions, "table", lambda: broken)
    with pytest.raises(mg.errors.ExportMismatchError, match=r"as given.*output differ.*instead of"):
        mg.onnx.export(lambda x: x.cumprod(1), holey(3, 4), path)
    assert not list(path.parent.iterdir())
    assert not mg.onnx.export(lambda x: x.cumprod(1), holey(3, 4), path, verify=False).compared


def test_a_file_that_breaks_the_rules_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx

    def found(*_: Any, **__: Any) -> None:
        raise onnx.shape_inference.InferenceError("Inferred shape and existing shape differ")

    monkeypatch.setattr(onnx.checker, "check_model", found)
    with pytest.raises(
        mg.errors.NotExportableError, match=r"writes an invalid ONNX file for it \(Inferred shape"
    ):
        mg.onnx.export(lambda x: x + 1, holey(3, 4), path)
    assert not list(path.parent.iterdir())


def test_random_models_cannot_be_compared_and_a_mistake_of_the_model_is_its_own(path: Path) -> None:
    with pytest.raises(mg.errors.ExportMismatchError, match="different results in each call"):
        mg.onnx.export(lambda x: x + torch.rand(3, 4), holey(3, 4), path)
    with pytest.raises(RuntimeError, match="must match the size"):
        mg.onnx.export(lambda x: x + torch.ones(7), holey(3, 4), path)
    with pytest.raises(Exception, match="rows"):  # a fixed dimension that is to vary
        mg.onnx.export(lambda x: torch.eye(3) @ x, holey(3, 4), path, dynamic_shapes={"x": {0: "rows"}})
    assert not list(path.parent.iterdir())


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"model": 3}, TypeError, "model must be an nn.Module or a function, found int"),
        ({"args": "x"}, TypeError, "args must be a tuple of the positional arguments, found str"),
        ({"args": ()}, TypeError, "must contain a tensor or a MaskedTensor"),
        ({"args": (ONES, {"a": [object()]})}, TypeError, r"args\[1\]\['a'\]\[0\] must be .*found object"),
        ({"kwargs": {"x": [ONES.numpy()]}}, TypeError, r"kwargs\['x'\]\[0\] must be.*found ndarray; convert"),
        ({"args": ONES * 1j}, TypeError, r"args\[0\] has dtype torch.complex64.*view_as_real"),
        ({"args": torch.ones(2, 2).to_sparse()}, TypeError, "layout torch.sparse_coo.*mg.from_sparse"),
        ({"model": lambda x: 3}, TypeError, "the model returns 3, which does not depend"),
        ({"model": lambda x: object()}, TypeError, "output must be .*found object"),
        ({"model": lambda x: x * 1j}, TypeError, "output has dtype torch.complex64"),
        ({"model": lambda x: x.to_sparse()}, TypeError, "output has layout torch.sparse_coo.*return"),
        ({"path": 3}, TypeError, "os.PathLike"),
        ({"path": ""}, IsADirectoryError, "path must name a file"),
        ({"path": os.curdir}, IsADirectoryError, "path must name a file"),
        ({"path": "no/such/folder/model.onnx"}, FileNotFoundError, "no/such/folder"),
        ({"input_names": "x"}, TypeError, r"must be a sequence of names, found 'x'; use \['x'\]"),
        ({"input_names": ["a", "b"]}, ValueError, "one name for each tensor.* 1 here, found 2"),
        ({"input_names": [("a", "b")]}, TypeError, "input_names must be a sequence of names, found"),
        ({"output_names": ["x"]}, ValueError, "output_names must be distinct.*'x' more than once"),
        ({"dynamic_shapes": "time"}, ValueError, 'dynamic_shapes must be "batch", None'),
        ({"dynamic_shapes": 3}, TypeError, "dynamic_shapes must be.*found 3"),
        (
            {"dynamic_shapes": {"y": None}},
            ValueError,
            r"'y', which is not an argument; expected some of \['x'\]",
        ),
        ({"dynamic_shapes": ({0: "a"},)}, TypeError, r'write \{"x": \{0: "batch"\}\}'),
        ({"dynamic_shapes": {"x": {5: "a"}}}, ValueError, r"\['x'\] must use dimensions.*found 5"),
        ({"dynamic_shapes": {"x": {0: "a b"}}}, ValueError, "identifiers as names.*found 'a b'"),
        ({"dynamic_shapes": {"x": 7}}, TypeError, "must be a dict from dimensions to names"),
        ({"opset_version": 3}, ValueError, "opset_version"),
    ],
)
def test_mistakes_in_arguments(
    arguments: dict[str, Any], error: type[Exception], words: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)

    def model(x: Any) -> Any:
        return x + 1

    given = {"model": model, "args": torch.ones(2), "path": path, **arguments}
    with pytest.raises(error, match=words):
        mg.onnx.export(**given)
    assert not list(path.parent.iterdir())
