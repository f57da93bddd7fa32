"""Every module of torch.nn that has parameters, against the loop over samples; and what the rules have to get right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maskgrad as mg
from tests.unit.gradients.sample_loop import batches_for, loop, modules_of_torch, smooth

ZOO = modules_of_torch()
# The database gives them states without a dimension of samples; see test_per_sample_recurrence.
NOT_IN_BATCHES_OF_ONE = {"nn.RNNCell", "nn.LSTMCell", "nn.GRUCell"}


def same(
    model: nn.Module, loss_fn: Callable[..., Any], inputs: Any, targets: Any = None
) -> dict[str, Tensor]:
    """The gradients, after a comparison with the loop."""
    expected = loop(model, loss_fn, inputs, targets)
    found = mg.per_sample_grad(model, loss_fn, inputs, targets, method="batched")
    assert list(found) == list(expected)
    for name, gradient in found.items():
        torch.testing.assert_close(
            gradient.to_dense(), expected[name], rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
        )
    return found


def coupled(model: nn.Module) -> bool:
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return any(m.training or m.running_mean is None for m in norms)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of lazy modules, padded attention, options of a loss
@pytest.mark.filterwarnings("error:the gradients per sample are computed by a slow loop")
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("info", ZOO, ids=lambda info: info.name)
def test_modules_of_torch_equal_the_loop(info: Any, training: bool) -> None:
    compared = with_parameters = 0
    for model, inputs in batches_for(info, training):
        if not list(model.parameters()):
            continue
        with_parameters += 1
        if coupled(model):
            with pytest.raises(mg.errors.CoupledSamplesError, match="BatchNorm"):
                mg.per_sample_grad(model, smooth, inputs)
            compared += 1
            continue
        try:
            expected = loop(model, smooth, inputs)
        except RuntimeError:
            continue  # a batch of one does not fit the other arguments, or nothing is differentiable
        found = mg.per_sample_grad(model, smooth, inputs)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient.to_dense(), expected[name], rtol=1e-9, atol=1e-9)
        norms = mg.per_sample_grad_norms(model, smooth, inputs)
        squares = torch.stack([g.flatten(1).square().sum(1) for g in expected.values()]).sum(0)
        torch.testing.assert_close(norms, squares.sqrt(), rtol=1e-7, atol=1e-7, equal_nan=True)
        compared += 1
        if compared == 8:
            break
    assert compared or not with_parameters or info.name in NOT_IN_BATCHES_OF_ONE


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Linear(4, 3), (5, 4)),
        (nn.Linear(4, 3, bias=False), (5, 2, 3, 4)),
        (nn.Linear(4, 3), (5, 0, 4)),
        (nn.Conv1d(3, 4, 3, padding="same", dilation=2), (5, 3, 7)),
        (nn.Conv1d(3, 4, 2, padding="same"), (5, 3, 7)),
        (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), groups=2), (5, 4, 7, 6)),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular", bias=False), (5, 2, 4, 4)),
        (nn.Conv3d(2, 3, 2, dilation=(1, 2, 1)), (3, 2, 3, 4, 3)),
        (nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 2)), (3, 2, 3, 3)),
        (Attention(), (4, 5, 6)),
        (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), nn.Tanh()), (4, 3)),
    ],
    ids=lambda value: str(value).split("(")[0] if isinstance(value, nn.Module) else str(value),
)  # fmt: skip
def test_layers_of_all_options_equal_the_loop(model: nn.Module, shape: tuple[int, ...]) -> None:
    model = model.double()
    x = torch.randn(shape, dtype=torch.float64)
    expected = same(model, smooth, x)
    squares = torch.stack([g.flatten(1).square().sum(1) for g in expected.values()]).sum(0)
    torch.testing.assert_close(mg.per_sample_grad_norms(model, smooth, x), squares.sqrt())


def test_attention_in_a_vmap_of_the_models_own() -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(6, 6, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            def attend(y: Tensor) -> Tensor:
                return F.scaled_dot_product_attention(self.mix(y), y, y * self.mix.bias)

            return torch.vmap(attend, in_dims=1)(x)

    same(Inside(), smooth, torch.randn(4, 4, 2, 3, 5, 6, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(3, 3), (1, 3, 3), (4, 1, 3), (1, 4, 3, 3)], ids=str)
@pytest.mark.parametrize("shared", [True, False])
def test_attention_masks_are_broadcast(shape: tuple[int, ...], shared: bool) -> None:
    masks = torch.randn(5, *shape, dtype=torch.float64)

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Linear(6, 6, dtype=torch.float64)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            keys = self.mix(x)
            return F.scaled_dot_product_attention(x, keys, keys, masks[0] if shared else mask[0])

    same(Attend(), smooth, (torch.randn(5, 4, 3, 6, dtype=torch.float64), masks))


def test_inputs_that_are_not_contiguous() -> None:
    model = nn.Conv2d(2, 3, 2).double()
    same(model, smooth, torch.randn(5, 4, 4, 2, dtype=torch.float64).permute(0, 3, 1, 2))
    same(nn.Linear(4, 2).double(), smooth, torch.randn(4, 3, dtype=torch.float64).T)


def test_a_layer_that_is_called_several_times() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(self.inner(x).tanh()) + self.inner.weight.sum() * self.inner(x)

    x = torch.randn(4, 5, 3, dtype=torch.float64)
    expected = same(Twice(), smooth, x)
    assert set(expected) == {"inner.weight", "inner.bias"}


def test_batch_dimensions_that_move_about_are_not_mistaken() -> None:
    # Five samples of five steps: time first looks just like samples first.
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return (
                self.inner(x.transpose(0, 1).reshape(-1, 3)).view(x.shape[1], x.shape[0], 2).transpose(0, 1)
            )

    same(TimeFirst(), smooth, torch.randn(5, 5, 3, dtype=torch.float64))


def test_an_operand_that_all_samples_share() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.where = nn.Embedding(4, 3, dtype=torch.float64)
            self.mix = nn.Linear(3, 3, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.mix(self.where(torch.arange(4)))

    same(Positions(), smooth, torch.randn(5, 4, 3, dtype=torch.float64))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"padding_idx": 2}, {"padding_idx": -1}, {"max_norm": 0.5}, {"scale_grad_by_freq": True}], ids=str
)  # fmt: skip
def test_tables_equal_the_loop(sparse: bool, options: dict[str, Any]) -> None:
    if sparse and "scale_grad_by_freq" in options:
        sparse = False  # PyTorch has no such gradient
    model = nn.Sequential(
        nn.Embedding(6, 3, sparse=sparse, **options), nn.Flatten(), nn.Linear(12, 2)
    ).double()
    ids = torch.tensor([[0, 2, 2, 5], [5, 5, 5, 5], [1, 2, 3, 4]])
    found = same(model, smooth, ids)["0.weight"]
    assert found.layout is (torch.sparse_coo if sparse else torch.strided)
    if sparse:
        assert found.is_coalesced()
        assert found.dense_dim() == 1
        assert found._nnz() <= sum(len(set(row)) for row in ids.tolist())


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding_idx", [None, 2])
@pytest.mark.parametrize("sparse", [False, True])
def test_bags_equal_the_loop(mode: str, padding_idx: int | None, sparse: bool) -> None:
    if sparse and mode == "max":
        sparse = False
    bag = nn.EmbeddingBag(6, 3, mode=mode, padding_idx=padding_idx, sparse=sparse)
    model = nn.Sequential(bag, nn.Linear(3, 2)).double()
    found = same(model, smooth, torch.tensor([[0, 2, 2, 5], [2, 2, 2, 2], [1, 2, 3, 4]]))["0.weight"]
    assert found.layout is (torch.sparse_coo if sparse else torch.strided)


def test_a_bag_with_weights() -> None:
    bag = nn.EmbeddingBag(6, 3, mode="sum").double()
    ids, weights = torch.randint(6, (4, 5)), torch.randn(4, 5, dtype=torch.float64)
    same(bag, smooth, {"input": ids, "per_sample_weights": weights})


def test_a_table_that_is_also_the_output_layer() -> None:
    class Tied(nn.Module):
        def __init__(self, sparse: bool) -> None:
            super().__init__()
            self.table = nn.Embedding(6, 3, sparse=sparse, dtype=torch.float64)
            self.out = nn.Linear(3, 6, bias=False, dtype=torch.float64)
            self.out.weight = self.table.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.table(ids).tanh())

    ids = torch.randint(6, (4, 5))
    for sparse in (False, True):
        found = same(Tied(sparse), smooth, ids)
        assert list(found) == ["table.weight"]
        assert found["table.weight"].layout is torch.strided
    total = mg.per_sample_grad_norms(Tied(False), smooth, ids)
    assert total.shape == (4,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_halves_are_close_to_float64(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(12, 2)).to(dtype)
    ids = torch.tensor([[1, 1, 2], [3, 3, 3]])
    found = mg.per_sample_grad(model, smooth, ids)
    assert all(g.dtype is dtype for g in found.values())
    for name, gradient in loop(model.double(), smooth, ids).items():
        tolerance = (
            {"rtol": 0.05, "atol": 0.05} if dtype is not torch.float32 else {"rtol": 1e-4, "atol": 1e-4}
        )
        torch.testing.assert_close(found[name].to_dense().double(), gradient, **tolerance)


def test_complex_weights_equal_the_loop() -> None:
    model = nn.Linear(3, 2, dtype=torch.complex128)
    x = torch.randn(4, 2, 3, dtype=torch.complex128)
    loss: Callable[..., Tensor] = lambda y: (y * y.conj()).real.sum() + y.real.sum()  # noqa: E731
    expected = same(model, loss, x)
    squares = torch.stack([g.abs().flatten(1).square().sum(1) for g in expected.values()]).sum(0)
    torch.testing.assert_close(mg.per_sample_grad_norms(model, loss, x), squares.sqrt())


def test_autocast_gives_gradients_in_the_parameters_dtype() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x, t = torch.randn(5, 4), torch.randint(2, (5,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = mg.per_sample_grad(model, F.cross_entropy, x, t, method="batched")
    for name, gradient in loop(model, F.cross_entropy, x, t).items():
        assert found[name].dtype is torch.float32
        torch.testing.assert_close(found[name], gradient, rtol=0.1, atol=0.05)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Linear(4, 3), (5, 2, 4)),
        (nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)), (5, 2, 4)),
        (nn.Conv1d(3, 4, 2), (5, 3, 6)),
        (nn.Sequential(nn.GroupNorm(1, 3), nn.PReLU(3)), (5, 3, 6)),
        (nn.Bilinear(4, 4, 2), (5, 4)),
    ],
    ids=lambda value: str(value).split("\n")[0] if isinstance(value, nn.Module) else str(value),
)
def test_layers_on_masked_inputs_equal_the_loop(
    model: nn.Module, shape: tuple[int, ...], garbage: float
) -> None:
    model = model.double()
    values, mask = torch.randn(shape, dtype=torch.float64), torch.rand(shape) > 0.4
    mask[1] = False
    x = mg.masked(values.masked_fill(~mask, garbage), mask)
    inputs = (x, x) if isinstance(model, nn.Bilinear) else x
    loss: Callable[..., Any] = lambda y: (y.sin() * 3).sum()  # noqa: E731
    expected = mg.per_sample_grad(model, loss, inputs, method="loop")
    found = mg.per_sample_grad(model, loss, inputs, method="batched")
    for name, gradient in found.items():
        assert gradient.isfinite().all()
        assert not gradient[1].any()
        torch.testing.assert_close(gradient, expected[name])
