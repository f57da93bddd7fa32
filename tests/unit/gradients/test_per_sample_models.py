"""Gradients and norms per sample of models of many kinds, against the loop over samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import maskgrad as mg
from tests.unit.gradients.sample_loop import loop, smooth

D = torch.float64


class Net(nn.Module):
    """Modules and parameters by name, and what is done with them."""

    def __init__(self, way: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.way = way
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.way(self, *args)


class Scaled(torch.autograd.Function):
    """A product by a function of one's own, that vmap may use."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return x * w

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0)


def x(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=D)


def weight() -> nn.Parameter:
    return nn.Parameter(x(3))


def attend(net: Any, y: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(net.mix(y), y, y * net.mix.bias)


def listed(net: Any, y: Tensor) -> Tensor:
    product: Tensor = Scaled.apply(y, net.kept[0])
    return product + torch.stack(net.kept).sum(0) * y


def with_list() -> nn.Module:
    w = weight()
    return Net(listed, w=w, kept=[w, w])


def energetic(net: Any, y: Tensor) -> Tensor:
    force = torch.func.grad(lambda z: net.layer(z).tanh().sum())(y)
    return torch.vmap(net.layer)(y) + force.sum()


def tied(sparse: bool) -> nn.Module:
    net = Net(lambda net, ids: net.out(net.table(ids).tanh()), table=nn.Embedding(6, 3, sparse=sparse))
    net.out = nn.Linear(3, 6, bias=False)
    net.out.weight = net.table.weight
    return net


def recurrent(kind: Any, **options: Any) -> nn.Module:
    if options.get("batch_first", True):
        return kind(3, 4, **{"batch_first": True, **options})  # type: ignore[no-any-return]
    return Net(lambda net, y: net.inner(y.transpose(0, 1))[0].transpose(0, 1), inner=kind(3, 4, **options))


def started(net: Any, y: Tensor) -> Any:
    return net.inner(y, (net.start, net.start.tanh()))[1]


IDS = torch.tensor([[0, 2, 2, 5], [5, 5, 5, 5], [1, 2, 3, 4]])
Made = Callable[[], tuple[nn.Module, Any]]
LAYERS: dict[str, Made] = {
    "linear": lambda: (nn.Linear(4, 3), x(5, 4)),
    "linear, no bias": lambda: (nn.Linear(4, 3, bias=False), x(5, 2, 3, 4)),
    "linear, nothing": lambda: (nn.Linear(4, 3), x(5, 0, 4)),
    "linear, turned": lambda: (nn.Linear(4, 2), x(4, 3).T),
    "conv, dilated": lambda: (nn.Conv1d(3, 4, 3, padding="same", dilation=2), x(5, 3, 7)),
    "conv, even": lambda: (nn.Conv1d(3, 4, 2, padding="same"), x(5, 3, 7)),
    "conv, groups": lambda: (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), groups=2), x(5, 4, 7, 6)),
    "conv, circular": lambda: (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular", bias=False), x(5, 2, 4, 4)),
    "conv, 3-d": lambda: (nn.Conv3d(2, 3, 2, dilation=(1, 2, 1)), x(3, 2, 3, 4, 3)),
    "conv, turned": lambda: (nn.Conv2d(2, 3, 2), x(5, 4, 4, 2).permute(0, 3, 1, 2)),
    "in place": lambda: (
        nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 2)), x(3, 2, 3, 3)
    ),
    "attention": lambda: (
        Net(lambda net, y: net.of(y, y, y, need_weights=False)[0], of=nn.MultiheadAttention(6, 2, batch_first=True)),
        x(4, 5, 6),
    ),
    "weight norm": lambda: (nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), nn.Tanh()), x(4, 3)),
    "attention in a vmap": lambda: (
        Net(lambda net, y: torch.vmap(lambda z: attend(net, z), in_dims=1)(y), mix=nn.Linear(6, 6)), x(4, 4, 2, 3, 5, 6)
    ),
    "called twice": lambda: (
        Net(
            lambda net, y: net.inner(net.inner(y).tanh()) + net.inner.weight.sum() * net.inner(y), inner=nn.Linear(3, 3)
        ),
        x(4, 5, 3),
    ),
    # five samples of five steps: time first looks just like samples first
    "time first": lambda: (
        Net(
            lambda net, y: net.inner(y.transpose(0, 1).reshape(-1, 3)).view(5, len(y), 2).transpose(0, 1),
            inner=nn.Linear(3, 2),
        ),
        x(5, 5, 3),
    ),
    "a shared operand": lambda: (
        Net(lambda net, y: y * net.mix(net.where(torch.arange(4))), where=nn.Embedding(4, 3), mix=nn.Linear(3, 3)),
        x(5, 4, 3),
    ),
    "weighted bag": lambda: (
        nn.EmbeddingBag(6, 3, mode="sum"), {"input": torch.randint(6, (4, 5)), "per_sample_weights": x(4, 5)}
    ),
    "tied": lambda: (tied(False), torch.randint(6, (4, 5))),
    "tied, sparse": lambda: (tied(True), torch.randint(6, (4, 5))),
    "own function": lambda: (Net(lambda net, y: Scaled.apply(y, net.w), w=weight()), x(5, 3)),
    "references in a list": lambda: (with_list(), x(5, 3)),
    "transforms of its own": lambda: (Net(energetic, layer=nn.Linear(3, 2)), x(5, 3)),
    "states that are given": lambda: (
        Net(started, inner=nn.LSTM(3, 4, batch_first=True), start=nn.Parameter(x(1, 1, 4))), x(5, 2, 3)
    ),
}  # fmt: skip
for shape in ((3, 3), (1, 3, 3), (4, 1, 3), (1, 4, 3, 3)):
    for shared in (True, False):

        def masked_attention(shape: tuple[int, ...] = shape, shared: bool = shared) -> tuple[nn.Module, Any]:
            masks = x(5, *shape)

            def way(net: Any, y: Tensor, mask: Tensor) -> Tensor:
                keys = net.mix(y)
                return F.scaled_dot_product_attention(y, keys, keys, masks[0] if shared else mask[0])

            return Net(way, mix=nn.Linear(6, 6)), (x(5, 4, 3, 6), masks)

        LAYERS[f"attention, mask {shape}, shared {shared}"] = masked_attention
for kind in (nn.LSTM, nn.GRU, nn.RNN):
    own = {nn.LSTM: {"proj_size": 2}, nn.GRU: {"bidirectional": True}, nn.RNN: {"nonlinearity": "relu"}}[kind]
    for options in (
        {},
        {"bias": False},
        {"num_layers": 2, "bidirectional": True},
        {"batch_first": False},
        own,
    ):
        LAYERS[f"{kind.__name__} {options}"] = lambda kind=kind, o=options: (recurrent(kind, **o), x(5, 6, 3))
for cell in (nn.LSTMCell, nn.GRUCell, nn.RNNCell):
    for bias in (True, False):
        LAYERS[f"{cell.__name__}, bias {bias}"] = lambda cell=cell, b=bias: (cell(3, 4, bias=b), x(5, 3))
for sparse in (False, True):
    for table in (
        {},
        {"padding_idx": 2},
        {"padding_idx": -1},
        {"max_norm": 0.5},
        {"scale_grad_by_freq": True},
    ):
        if not (sparse and "scale_grad_by_freq" in table):  # PyTorch has no such gradient
            LAYERS[f"table {table}{', sparse' * sparse}"] = lambda o=table, s=sparse: (
                nn.Sequential(nn.Embedding(6, 3, sparse=s, **o), nn.Flatten(), nn.Linear(12, 2)), IDS,
            )  # fmt: skip
    for mode in ("sum", "mean") if sparse else ("sum", "mean", "max"):
        for padding in (None, 2):
            LAYERS[f"bag {mode}, {padding}{', sparse' * sparse}"] = lambda m=mode, p=padding, s=sparse: (
                nn.Sequential(nn.EmbeddingBag(6, 3, mode=m, padding_idx=p, sparse=s), nn.Linear(3, 2)), IDS,
            )  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_and_norms_equal_the_loop(name: str) -> None:
    model, inputs = LAYERS[name]()
    found = same(model.double(), smooth, inputs, "loop" if by_loop(name) else "batched")
    first = next(iter(found.values()))
    assert first.layout is (
        torch.sparse_coo if name.endswith(", sparse") and "tied" not in name else torch.strided
    )
    if first.is_sparse:
        assert first.is_coalesced()
        assert first.dense_dim() == 1
        assert first._nnz() <= sum(len(set(row)) for row in IDS.tolist())


def by_loop(name: str) -> bool:
    """What torch.vmap does not support: recurrent layers, sparse bags, rows that are renormalised or used densely."""
    if name.startswith(("LSTM", "RNN", "GRU")) or "max_norm" in name:
        return True
    if name in ("references in a list", "states that are given", "tied, sparse"):
        return True
    return name.startswith("bag ") and name.endswith(", sparse")


def same(
    model: nn.Module, loss_fn: Callable[..., Any], inputs: Any, method: Any = "batched"
) -> dict[str, Tensor]:
    """The gradients, after a comparison with the loop."""
    expected = loop(model, loss_fn, inputs)
    found = mg.per_sample_grad(model, loss_fn, inputs, method=method)
    assert list(found) == list(expected)
    for name, gradient in found.items():
        torch.testing.assert_close(
            gradient.to_dense(), expected[name], rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
        )
    squares = torch.stack([g.abs().flatten(1).square().sum(1) for g in expected.values()]).sum(0)
    torch.testing.assert_close(
        mg.per_sample_grad_norms(model, loss_fn, inputs, method=method), squares.sqrt()
    )
    return found


def test_complex_weights() -> None:
    model, inputs = nn.Linear(3, 2, dtype=torch.complex128), torch.randn(4, 2, 3, dtype=torch.complex128)
    same(model, lambda y: (y * y.conj()).real.sum() + y.real.sum(), inputs)


def test_a_loss_that_reads_parameters() -> None:
    model = nn.Linear(3, 2, dtype=D)
    with pytest.warns(
        UserWarning, match="slow loop .* a parameter is used through a reference outside of the module"
    ):
        same(model, lambda y: smooth(y) + model.weight.square().sum(), x(5, 3), method="auto")


def test_recurrent_layers_go_by_the_loop() -> None:
    with pytest.warns(UserWarning, match=r"slow loop .* recurrent layers.*method='loop' silences"):
        same(nn.LSTM(3, 4, batch_first=True).double(), smooth, x(5, 2, 3), method="auto")


def test_checkpointed_layers() -> None:
    inner = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model = Net(lambda net, y: checkpoint(net.inner, y, use_reentrant=False), inner=inner)
    same(model, smooth, x(5, 3), method="loop")


def test_dropout_between_recurrent_layers_is_drawn() -> None:
    model = nn.GRU(3, 8, num_layers=2, dropout=0.5, batch_first=True)
    y = torch.randn(1, 4, 3).expand(2, 4, 3)

    def found() -> Tensor:
        return mg.per_sample_grad(model, lambda y: y[0].sum(), y, method="loop")["weight_ih_l1"]

    assert not torch.equal(*found())
    model.eval()
    assert torch.equal(*found())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_halves_are_close_to_float64(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(12, 2)).to(dtype)
    ids = torch.tensor([[1, 1, 2], [3, 3, 3]])
    found = mg.per_sample_grad(model, smooth, ids)
    assert all(g.dtype is dtype for g in found.values())
    near = 0.05 if dtype is not torch.float32 else 1e-4
    for name, gradient in loop(model.double(), smooth, ids).items():
        torch.testing.assert_close(found[name].to_dense().double(), gradient, rtol=near, atol=near)


MASKED: dict[str, Made] = {
    "linear": lambda: (nn.Linear(4, 3), x(5, 2, 4)),
    "layer norm": lambda: (nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)), x(5, 2, 4)),
    "conv": lambda: (nn.Conv1d(3, 4, 2), x(5, 3, 6)),
    "group norm": lambda: (nn.Sequential(nn.GroupNorm(1, 3), nn.PReLU(3)), x(5, 3, 6)),
    "bilinear": lambda: (nn.Bilinear(4, 4, 2), x(5, 4)),
}


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize("name", MASKED)
def test_layers_on_masked_inputs_equal_the_loop(name: str, garbage: float) -> None:
    model, values = MASKED[name]()
    model, mask = model.double(), torch.rand(values.shape) > 0.4
    mask[1] = False
    given = mg.masked(values.masked_fill(~mask, garbage), mask)
    inputs = (given, given) if isinstance(model, nn.Bilinear) else given
    loss: Callable[..., Any] = lambda y: (y.sin() * 3).sum()  # noqa: E731
    expected = mg.per_sample_grad(model, loss, inputs, method="loop")
    for key, gradient in mg.per_sample_grad(model, loss, inputs, method="batched").items():
        assert gradient.isfinite().all()
        assert not gradient[1].any()
        torch.testing.assert_close(gradient, expected[key])
