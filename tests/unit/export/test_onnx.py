"""mg.onnx.export: files that agree with the model on every mask and batch, or no files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.versions import is_before, release
from tests.unit.export.holes import holey

nan = float("nan")
NOTHING = mg.masked(torch.full((2, 4), nan), torch.zeros(2, 4) > 0)


def plain(value: Any, is_result: bool = False) -> Iterator[Tensor]:
    """The tensors in which a value enters or leaves."""
    if isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from plain(part, is_result)
    elif not isinstance(value, mg.MaskedTensor):
        yield value
    elif value.layout == torch.strided:
        yield from (value.filled(0.0) if is_result else value.get_data(), value.mask)
    else:
        yield from (value._values, *value._pattern.tensors())


def run(path: Path, *inputs: Any) -> list[Tensor]:
    """With ONNX Runtime alone, as a user of the file would."""
    session = onnxruntime.InferenceSession(path)
    names = [port.name for port in session.get_inputs()]
    given = {name: tensor.numpy() for name, tensor in zip(names, plain(inputs), strict=True)}
    return list(map(torch.from_numpy, session.run(None, given)))


def assert_agrees(path: Path, model: Callable[..., Any], *inputs: Any) -> None:
    with torch.no_grad():
        expected = list(plain(model(*inputs), is_result=True))
    for found, want in zip(run(path, *inputs), expected, strict=True):
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5, equal_nan=True)


class Pooled(nn.Module):
    """A layer, dropout, normalisation, attention, and the mean over time of what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.LayerNorm(8))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Any) -> dict[str, Any]:
        hidden = self.embed(x)
        mixed = F.scaled_dot_product_attention(hidden, hidden, hidden)
        pooled = self.norm(mixed.mean(1))
        return {"logits": pooled, "probability": pooled.softmax(-1)}


def test_data_and_mask_enter_and_leave_by_name_and_the_batch_varies(path: Path) -> None:
    model, x = Pooled(), holey(3, 5, 4)
    model.embed[1].train()
    file = mg.onnx.export(model, x, path)
    assert file.path == path
    assert [(port.name, port.dtype, port.shape) for port in file.inputs] == [
        ("x", "float", ("batch", 5, 4)),
        ("x_mask", "bool", ("batch", 5, 4)),
    ]
    stems = ("logits", "probability")
    assert [port.name for port in file.outputs] == [stem + end for stem in stems for end in ("", "_mask")]
    assert file.outputs[1].shape == ("batch", 8)
    for words in ("nothing specified", "everything specified", "size 1 instead of 3", "size 4 instead of 3"):
        assert [case for case in file.compared if words in case]
    assert model.training
    assert model.embed[1].training
    onnx.checker.check_model(path, full_check=True)
    nothing = mg.masked(torch.full((4, 5, 4), nan), torch.zeros(4, 5, 4) > 0)
    for other in (x[:1], holey(7, 5, 4), nothing, x[:0]):
        assert_agrees(path, model.eval(), other)


def test_a_number_has_no_mask_and_may_be_read(path: Path) -> None:
    def model(x: Any) -> Any:
        return x.mean(), x.sum(), x * x.std().item()

    file = mg.onnx.export(model, holey(3, 4), path)
    assert [port.name for port in file.outputs] == ["output_0", "output_1", "output_2", "output_2_mask"]
    for other in (holey(3, 4), NOTHING):
        assert_agrees(path, model, other)


def test_one_sample_is_enough_for_a_batch_that_varies(path: Path) -> None:
    mg.onnx.export(lambda x: (x.softmax(1), x.compressed()), mg.masked(torch.ones(1, 3)), path)
    softmax, mask, chosen = run(path, torch.zeros(2, 3), torch.tensor([[True, True, False], [False] * 3]))
    assert softmax.tolist() == [[0.5, 0.5, 0.0], [0.0] * 3]
    assert mask.tolist() == [[True, True, False], [False] * 3]
    assert chosen.tolist() == [0.0, 0.0]  # entries that are chosen by the run


def test_fixed_and_named_dimensions(path: Path) -> None:
    """One that the model ties down is fixed."""
    x, weight, parts = holey(3, 4), torch.randn(3, 3), {"bias": torch.ones(5)}

    def shapes(model: Callable[..., Any], *inputs: Any, **options: Any) -> list[tuple[int | str, ...]]:
        return [port.shape for port in mg.onnx.export(model, inputs, path, **options).inputs]

    def model(x: Any, parts: Any) -> Any:
        return x.sum(1) + parts["bias"].sum()

    assert shapes(lambda x: weight @ x, x)[0] == (3, 4)
    assert shapes(torch.add, weight, torch.randn(1, 3)) == [("batch", 3), (1, 3)]
    assert set(shapes(torch.where, x.mask, x, 0.0, dynamic_shapes=None)) == {(3, 4)}
    named = {"x": {0: "rows", 1: "columns"}, "parts": {"bias": {0: "n"}}}
    assert shapes(model, x, parts, dynamic_shapes=named) == [("rows", "columns"), ("rows", "columns"), ("n",)]
    last = {"x": {-1: torch.export.Dim("c")}}
    assert shapes(model, x, parts, dynamic_shapes=last) == [(3, "c"), (3, "c"), (5,)]
    assert_agrees(path, model, mg.masked(torch.ones(3, 2)), parts)


def test_names_follow_the_signature_or_can_be_given(path: Path) -> None:
    """Names of operations are names like others."""

    def model(where: Any, dim: int, keepdim: bool, extra: None, *, exp: Any) -> Any:
        return {"exp_1": where.exp() + exp, "where_1": where.amax(dim, keepdim=keepdim), "none": extra}

    x, exp = holey(3, 4), torch.ones(4)
    given, kwargs = (x, 1, True, None), {"exp": exp}
    file = mg.onnx.export(model, given, path, kwargs=kwargs)
    assert [port.name for port in file.inputs] == ["where", "where_mask", "exp"]
    assert [port.name for port in file.outputs] == ["exp_1", "exp_1_mask", "where_1", "where_1_mask"]
    assert file.outputs[2].shape == ("batch", 1)
    assert_agrees(path, lambda x, exp: [*model(x, 1, True, None, exp=exp).values()][:2], holey(2, 4), exp)
    names: dict[str, Any] = {"input_names": ["tokens", "other"], "output_names": ["total", "same"]}
    file = mg.onnx.export(model, given, path, kwargs=kwargs, **names)
    assert [port.name for port in file.inputs] == ["tokens", "tokens_mask", "other"]
    assert [port.name for port in file.outputs] == ["total", "total_mask", "same", "same_mask"]


def test_methods_and_closures_bring_their_modules_along(path: Path) -> None:
    model = Pooled()
    for function in (model.norm.forward, lambda x: model.norm(x) + 1):
        assert mg.onnx.export(function, holey(3, 8), path).compared
        assert model.norm.training


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_sparse_layout_enters_and_leaves_as_its_indices_and_values(
    layout: torch.layout, path: Path
) -> None:
    """Weights may have it, too, or a mask."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = holey(5, 2)
            self.stored = self.dense.to_sparse(layout)

        def forward(self, x: Any) -> Any:
            return x.exp(), x @ torch.ones(5, 2), x.to_dense() @ self.dense, x.to_dense() @ self.stored

    model, x = Layer(), holey(4, 5).to_sparse(layout)
    file = mg.onnx.export(model, (x,), path)
    roles = ["values", "indices"] if layout == torch.sparse_coo else ["values", "pointers", "positions"]
    assert [port.name for port in file.inputs] == [f"x_{role}" for role in roles]
    assert file.inputs[0].shape == ("x_entries",)
    assert_agrees(path, model, holey(4, 5).to_sparse(layout))


def test_a_sparse_result_has_as_many_entries_as_the_run_finds(path: Path) -> None:
    file = mg.onnx.export(lambda x: x.sum(1), (holey(4, 5).to_sparse(),), path)
    (entries,), second = (port.shape for port in file.outputs)
    assert isinstance(entries, str)
    assert second == (1, entries)
    diagonal = torch.eye(4, 5) * torch.tensor([1, 0, 1, 1, 1]) > 0
    values, indices = run(path, mg.masked(torch.ones(4, 5), diagonal).to_sparse())
    assert (values.tolist(), indices.tolist()) == ([1.0, 1.0, 1.0], [[0, 2, 3]])


def test_halves_and_integers(path: Path) -> None:
    for dtype in (torch.float16, torch.int64, torch.uint8, torch.bool):
        x = mg.masked(torch.tensor([[1, 0], [5, 0]]).to(dtype), torch.tensor([[1, 0], [0, 0]]) > 0)
        file = mg.onnx.export(lambda x: (x.sum(1), x.amax(1), torch.cat([x, x])), x, path)
        assert file.compared, dtype


@pytest.mark.parametrize("opset", [18, 22])
def test_a_row_without_keys_is_the_same_in_every_opset(opset: int, path: Path) -> None:
    def attend(q: Any, m: Tensor) -> Any:
        return F.scaled_dot_product_attention(mg.masked(q, torch.ones_like(q) > 0), q, q, attn_mask=m)

    q, m = torch.randn(1, 2, 3, 4), torch.tensor([[True] * 3, [False] * 3, [True, False, False]])
    assert mg.onnx.export(attend, (q, m), path, opset_version=opset).opset_version == opset
    assert_agrees(path, attend, q, m)


def test_large_weights_lie_beside_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = pytest.importorskip("torch.onnx._internal.exporter._onnx_program")
    monkeypatch.setattr(exporter, "_LARGE_MODEL_THRESHOLD", 100)
    layer = nn.Linear(40, 40)
    assert mg.onnx.export(layer, holey(3, 40), path).compared
    assert sorted(part.name for part in path.parent.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert_agrees(path, layer, holey(2, 40))


def test_final_states_of_a_recurrence_have_their_shapes(path: Path) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, x: Any) -> tuple[Any, ...]:
            output, (state, cell) = self.layers(x)
            return output, state, cell[-1]

    def sequences(number: int) -> Any:
        return mg.from_lengths(torch.randn(number, 6, 4), torch.arange(number).remainder(7))

    model = Last().eval()
    if is_before(
        release(torch.__version__), "2.13"
    ):  # it traces the states of an LSTM with a dimension too many
        with pytest.raises(mg.errors.ExportMismatchError, match="shape"):
            mg.onnx.export(model, (sequences(3),), path)
        return
    file = mg.onnx.export(model, (sequences(3),), path)
    shapes = [("batch", 6, 10), (4, "batch", 5), ("batch", 5)]
    assert [port.shape for port in file.outputs] == [s for s in shapes for _ in range(2)]
    assert_agrees(path, model, sequences(8))


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("options", [None, {"sparse": True}, {"scale_grad_by_freq": True}])
@pytest.mark.parametrize("name", ["Embedding", "EmbeddingBag"])
def test_tables_with_sparse_or_counting_gradients(
    name: str, options: dict[str, bool] | None, layout: torch.layout, path: Path
) -> None:
    """Ours, too; padding may hold any index."""
    ids, lengths = (
        torch.tensor([[1, 2, 3, 6, 4], [5, 0, 99, -1, 7], [3, 3, 3, 9, 9]]),
        torch.tensor([5, 2, 3]),
    )
    weight = torch.arange(21.0).reshape(7, 3).sin()
    table = getattr(mg.nn if options is None else nn, name)(7, 3, _weight=weight.clone(), **(options or {}))
    file = mg.onnx.export(table, (mg.from_lengths(ids, lengths, layout=layout),), path)
    assert file.inputs[0].shape == ("batch", 5)
    found, _ = run(path, mg.from_lengths(ids[1:], lengths[1:]))
    kept = torch.arange(5) < lengths[1:, None]
    rows = torch.where(kept[..., None], weight[torch.where(kept, ids[1:], 0)], 0.0)
    torch.testing.assert_close(found, rows.sum(1) / lengths[1:, None] if "Bag" in name else rows)
