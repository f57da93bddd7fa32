"""mg.onnx.export: files that agree with the model on every mask and batch, or no files."""

from __future__ import annotations

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


def run(path: Path, **inputs: Tensor) -> dict[str, Tensor]:
    """With ONNX Runtime alone, as a user of the file would."""
    session = onnxruntime.InferenceSession(path)
    names = [port.name for port in session.get_outputs()]
    results = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    return dict(zip(names, map(torch.from_numpy, results), strict=True))


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
    assert [port.name for port in file.outputs] == [
        "logits",
        "logits_mask",
        "probability",
        "probability_mask",
    ]
    assert file.outputs[1].shape == ("batch", 8)
    assert model.training
    assert model.embed[1].training
    onnx.checker.check_model(path, full_check=True)
    model.eval()
    for other in (
        x[:1],
        holey(7, 5, 4),
        mg.masked(torch.full((4, 5, 4), nan), torch.zeros(4, 5, 4) > 0),
        x[:0],
    ):
        with torch.no_grad():
            expected = model(other)
        found = run(path, x=other.get_data(), x_mask=other.mask)
        for name, want in expected.items():
            assert torch.equal(found[f"{name}_mask"], want.mask)
            torch.testing.assert_close(found[name], want.filled(0.0), rtol=1e-4, atol=1e-5)


def test_the_result_lists_the_compared_inputs(path: Path) -> None:
    words = mg.onnx.export(lambda x: x.sum(1), holey(3, 4), path).compared
    assert [w for w in words if "nothing specified" in w]
    assert [w for w in words if "everything specified" in w]
    assert [w for w in words if "size 1 instead of 3" in w]
    assert [w for w in words if "size 4 instead of 3" in w]
    assert mg.onnx.export(lambda x: x.sum(1), holey(3, 4), path, verify=False).compared == ()


def test_a_number_has_no_mask_and_may_be_read(path: Path) -> None:
    x = holey(3, 4)
    file = mg.onnx.export(lambda x: (x.mean(), x.sum(), x * x.std().item()), x, path)
    assert [port.name for port in file.outputs] == ["output_0", "output_1", "output_2", "output_2_mask"]
    nothing = mg.masked(torch.full((2, 4), nan), torch.zeros(2, 4) > 0)
    for other in (x, nothing):
        found = run(path, x=other.get_data(), x_mask=other.mask)
        torch.testing.assert_close(found["output_0"], other.mean(), equal_nan=True)
        torch.testing.assert_close(found["output_1"], other.sum())
        assert torch.equal(found["output_2_mask"], other.mask)
    assert found["output_0"].isnan()
    assert found["output_1"] == 0


def test_one_sample_is_enough_for_a_batch_that_varies(path: Path) -> None:
    file = mg.onnx.export(lambda x: x.softmax(1), mg.masked(torch.ones(1, 3)), path)
    assert file.inputs[0].shape == ("batch", 3)
    found = run(path, x=torch.zeros(2, 3), x_mask=torch.tensor([[True, True, False], [False] * 3]))
    assert found["output"].tolist() == [[0.5, 0.5, 0.0], [0.0] * 3]
    assert found["output_mask"].tolist() == [[True, True, False], [False] * 3]


def test_a_dimension_that_the_model_ties_down_is_fixed(path: Path) -> None:
    weight = torch.randn(3, 3)
    assert mg.onnx.export(lambda x: weight @ x, holey(3, 4), path).inputs[0].shape == (3, 4)
    x, one = torch.randn(4, 3), torch.randn(1, 3)
    assert [port.shape for port in mg.onnx.export(torch.add, (x, one), path).inputs] == [("batch", 3), (1, 3)]


def test_fixed_and_named_dimensions(path: Path) -> None:
    x, k = holey(3, 4), holey(3, 4).mask
    fixed = mg.onnx.export(torch.where, (k, x, 0.0), path, dynamic_shapes=None)
    assert {port.shape for port in fixed.inputs} == {(3, 4)}

    def model(x: Any, parts: Any) -> Any:
        return x.sum(1) + parts["bias"].sum()

    parts = {"bias": torch.ones(5)}
    named = mg.onnx.export(
        model, (x, parts), path, dynamic_shapes={"x": {0: "rows", 1: "columns"}, "parts": {"bias": {0: "n"}}}
    )
    assert [port.shape for port in named.inputs] == [("rows", "columns"), ("rows", "columns"), ("n",)]
    assert [port.name for port in named.inputs] == ["x", "x_mask", "parts_bias"]
    ordered = mg.onnx.export(model, (x, parts), path, dynamic_shapes={"x": {-1: torch.export.Dim("c")}})
    assert [port.shape for port in ordered.inputs] == [(3, "c"), (3, "c"), (5,)]
    assert run(path, x=torch.ones(3, 2), x_mask=torch.ones(3, 2) > 0, parts_bias=torch.zeros(5))[
        "output"
    ].tolist() == [
        2.0,
        2.0,
        2.0,
    ]


def test_a_fixed_dimension_that_is_to_vary_is_an_error(path: Path) -> None:
    with pytest.raises(Exception, match="rows"):
        mg.onnx.export(lambda x: torch.eye(3) @ x, holey(3, 4), path, dynamic_shapes={"x": {0: "rows"}})
    assert not list(path.parent.iterdir())


def test_names_can_be_given(path: Path) -> None:
    file = mg.onnx.export(
        lambda *xs: (xs[0] + xs[1], xs[1]),
        (holey(3, 4), torch.ones(3, 4)),
        path,
        input_names=["tokens", "other"],
        output_names=["total", "same"],
    )
    assert [port.name for port in file.inputs] == ["tokens", "tokens_mask", "other"]
    assert [port.name for port in file.outputs] == ["total", "total_mask", "same"]


def test_keyword_arguments_constants_and_none(path: Path) -> None:
    def scaled(x: Any, *, scale: Any) -> Any:
        return x * scale

    file = mg.onnx.export(scaled, (holey(3, 4),), path, kwargs={"scale": torch.tensor(2.0)})
    assert [port.name for port in file.inputs] == ["x", "x_mask", "scale"]

    def function(x: Any, dim: int, keepdim: bool, extra: None) -> Any:
        return [x.amax(dim, keepdim=keepdim), extra]

    file = mg.onnx.export(function, (holey(3, 4), 1, True, None), path)
    assert [port.name for port in file.inputs] == ["x", "x_mask"]
    assert [(port.name, port.shape) for port in file.outputs] == [
        ("output_0", ("batch", 1)),
        ("output_0_mask", ("batch", 1)),
    ]


def test_methods_and_closures_bring_their_modules_along(path: Path) -> None:
    model = Pooled()
    for function in (model.norm.forward, lambda x: model.norm(x) + 1):
        assert mg.onnx.export(function, holey(3, 8), path).compared
        assert model.norm.training


def test_masked_weights_dense_and_sparse(path: Path) -> None:
    pruned = holey(6, 4)
    x = torch.randn(3, 4)
    expected = F.linear(mg.masked(x), pruned)

    class Layer(nn.Module):
        def __init__(self, weight: mg.MaskedTensor) -> None:
            super().__init__()
            self.weight = weight

        def forward(self, x: Any) -> Any:
            return mg.masked(x, torch.ones_like(x, dtype=torch.bool)) @ self.weight.t()

    for weight in (pruned, pruned.to_sparse(), pruned.to_sparse(torch.sparse_csr)):
        file = mg.onnx.export(Layer(weight), x, path)
        assert file.inputs[0].shape == ("batch", 4)
        found = run(path, x=x)
        assert torch.equal(found["output_mask"], expected.mask)
        torch.testing.assert_close(found["output"], expected.filled(0.0))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_sparse_layout_enters_as_its_indices_and_values(layout: torch.layout, path: Path) -> None:
    x = holey(4, 5).to_sparse(layout)
    file = mg.onnx.export(lambda x: (x.exp(), x @ torch.ones(5, 2)), (x,), path)
    roles = ["values", "indices"] if layout == torch.sparse_coo else ["values", "pointers", "positions"]
    assert [port.name for port in file.inputs] == [f"x_{role}" for role in roles]
    assert file.inputs[0].shape == ("x_entries",)
    other = holey(4, 5).to_sparse(layout)
    parts = [other._values, *other._pattern.tensors()]
    found = run(path, **{f"x_{role}": part for role, part in zip(roles, parts, strict=True)})
    assert torch.equal(found[f"output_0_{roles[1]}"], parts[1])
    torch.testing.assert_close(found["output_0_values"], parts[0].exp())
    rows = other @ torch.ones(5, 2)
    assert torch.equal(found["output_1_mask"], rows.mask)
    torch.testing.assert_close(found["output_1"], rows.filled(0.0))


def test_a_sparse_result_has_as_many_entries_as_the_run_finds(path: Path) -> None:
    file = mg.onnx.export(lambda x: x.sum(1), (holey(4, 5).to_sparse(),), path)
    (entries,), second = (port.shape for port in file.outputs)
    assert isinstance(entries, str)
    assert second == (1, entries)
    mask = torch.eye(4, 5) > 0
    mask[1] = False
    stored = mg.masked(torch.ones(4, 5), mask).to_sparse()
    found = run(path, x_values=stored._values, x_indices=stored._pattern.tensors()[0])
    assert (found["output_values"].tolist(), found["output_indices"].tolist()) == (
        [1.0, 1.0, 1.0],
        [[0, 2, 3]],
    )


def test_halves_and_integers(path: Path) -> None:
    for dtype in (torch.float16, torch.int64, torch.uint8, torch.bool):
        x = mg.masked(
            torch.tensor([[1, 0, 3], [5, 0, 2]]).to(dtype), torch.tensor([[1, 0, 1], [0, 0, 0]]) > 0
        )
        file = mg.onnx.export(lambda x: (x.sum(1), x.amax(1), torch.cat([x, x])), x, path)
        assert file.compared, dtype


@pytest.mark.parametrize("opset", [18, 20, 22])
def test_a_row_without_keys_is_the_same_in_every_opset(opset: int, path: Path) -> None:
    def attend(q: Any, m: Tensor) -> Any:
        return F.scaled_dot_product_attention(mg.masked(q, torch.ones_like(q) > 0), q, q, attn_mask=m)

    q, m = torch.randn(1, 2, 3, 4), torch.tensor([[True] * 3, [False] * 3, [True, False, False]])
    file = mg.onnx.export(attend, (q, m), path, opset_version=opset)
    assert file.opset_version == opset
    found = run(path, q=q, m=m)
    assert not found["output_mask"][:, :, 1].any()
    assert not found["output"][:, :, 1].any()
    torch.testing.assert_close(found["output"][:, :, 2], q[:, :, 0])


def test_large_weights_lie_beside_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = pytest.importorskip("torch.onnx._internal.exporter._onnx_program")
    monkeypatch.setattr(exporter, "_LARGE_MODEL_THRESHOLD", 100)
    layer = nn.Linear(40, 40)
    assert mg.onnx.export(layer, holey(3, 40), path).compared
    assert sorted(part.name for part in path.parent.iterdir()) == ["model.onnx", "model.onnx.data"]
    x = holey(2, 40)
    found = run(path, input=x.get_data(), input_mask=x.mask)
    torch.testing.assert_close(found["output"], layer(x).filled(0.0).detach(), rtol=1e-4, atol=1e-5)


def test_entries_that_are_chosen_by_the_run(path: Path) -> None:
    mg.onnx.export(lambda x: x.compressed(), holey(3, 4), path)
    x = mg.masked(torch.arange(8.0).reshape(2, 4), torch.tensor([[True, False, False, True], [False] * 4]))
    assert run(path, x=x.get_data(), x_mask=x.mask)["output"].tolist() == [0.0, 3.0]


def test_names_of_operations_are_names_like_others(path: Path) -> None:
    def model(where: Any, exp: Tensor) -> dict[str, Any]:
        return {"exp_1": where.exp() + exp, "where_1": where.exp(), "scalar_tensor_default": where}

    file = mg.onnx.export(model, (holey(3, 4), torch.ones(4)), path)
    assert [port.name for port in file.inputs] == ["where", "where_mask", "exp"]
    assert [port.name for port in file.outputs] == [
        name for stem in ("exp_1", "where_1", "scalar_tensor_default") for name in (stem, f"{stem}_mask")
    ]
    x = holey(2, 4)
    found = run(path, where=x.get_data(), where_mask=x.mask, exp=torch.ones(4))
    for name, want in model(x, torch.ones(4)).items():
        assert torch.equal(found[f"{name}_mask"], want.mask)
        torch.testing.assert_close(found[name], want.filled(0.0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_final_states_of_a_recurrence_have_their_shapes(masked: bool, path: Path) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, x: Any) -> tuple[Any, ...]:
            output, (state, cell) = self.layers(x)
            return output, state, cell[-1]

    def sequences(number: int) -> Any:
        x = torch.randn(number, 6, 4)
        lengths = torch.arange(number).remainder(7)
        mask = (torch.arange(6) < lengths[:, None])[..., None].expand(x.shape)
        return mg.masked(torch.where(mask, x, nan), mask) if masked else x

    model = Last().eval()
    if is_before(
        release(torch.__version__), "2.13"
    ):  # it traces the states of an LSTM with a dimension too many
        with pytest.raises(mg.errors.ExportMismatchError, match="shape"):
            mg.onnx.export(model, (sequences(3),), path)
        return
    file = mg.onnx.export(model, (sequences(3),), path)
    shapes = [("batch", 6, 10), (4, "batch", 5), ("batch", 5)]
    assert [port.shape for port in file.outputs] == [s for s in shapes for _ in range(1 + masked)]
    x = sequences(8)
    given = {"x": x.get_data(), "x_mask": x.mask} if masked else {"x": x}
    with torch.no_grad():
        expected = model(x)
    found = run(path, **given)
    for i, want in enumerate(expected):
        if masked:
            assert torch.equal(found[f"output_{i}_mask"], want.mask)
            want = want.filled(0.0)  # noqa: PLW2901
        torch.testing.assert_close(found[f"output_{i}"], want, rtol=1e-4, atol=1e-5)


IDS, LENGTHS = torch.tensor([[1, 2, 3, 6, 4], [5, 0, 99, -1, 7], [3, 3, 3, 9, 9]]), torch.tensor([5, 2, 3])
KEPT = torch.arange(5) < LENGTHS[:, None]
TABLE = torch.arange(21.0).reshape(7, 3).sin()
#: Rows that are looked up, 0 where the index is unspecified.
ROWS = torch.where(KEPT[..., None], TABLE[torch.where(KEPT, IDS, 0)], 0.0)


def lookup(kind: str) -> Any:
    make: Any = {
        "mg": mg.nn.Embedding,
        "frozen": lambda *_, _weight: mg.nn.Embedding.from_pretrained(_weight),
        "bag": mg.nn.EmbeddingBag,
        "torch": lambda *sizes, **options: nn.Embedding(*sizes, sparse=True, **options),
        "torch, bag": lambda *sizes, **options: nn.EmbeddingBag(*sizes, sparse=True, **options),
        "counting": lambda *sizes, **options: nn.Embedding(*sizes, scale_grad_by_freq=True, **options),
        "counting, bag": lambda *sizes, **options: nn.EmbeddingBag(
            *sizes, scale_grad_by_freq=True, **options
        ),
    }[kind]
    return make(7, 3, _weight=TABLE.clone())


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("kind", ["mg", "frozen", "bag", "torch", "torch, bag", "counting", "counting, bag"])
def test_tables_with_sparse_or_counting_gradients(kind: str, layout: torch.layout, path: Path) -> None:
    table = lookup(kind)
    ids = mg.from_lengths(IDS, LENGTHS, layout=layout)
    assert mg.onnx.export(table, (ids,), path).inputs[0].shape == ("batch", 5)
    found = run(path, input=IDS[[1, 2]], input_mask=KEPT[[1, 2]])
    expected = ROWS.sum(1) / LENGTHS[:, None] if "bag" in kind else ROWS
    torch.testing.assert_close(found["output"], expected[[1, 2]])
