"""Gradients and norms per sample of models of many kinds, against the loop over samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


def listed(net: Any, y: Tensor) -> Tensor:
    product: Tensor = Scaled.apply(y, net.kept[0])
    return product + torch.stack(net.kept).sum(0) * y


def with_list() -> nn.Module:
    w = weight()
    return Net(listed, w=w, kept=[w, w])


def tied(sparse: bool) -> nn.Module:
    net = Net(lambda net, ids: net.out(net.table(ids).tanh()), table=nn.Embedding(6, 3, sparse=sparse))
    net.out = nn.Linear(3, 6, bias=False)
    net.out.weight = net.table.weight
    return net


def started(net: Any, y: Tensor) -> Any:
    return net.inner(y, (net.start, net.start.tanh()))[1]


IDS = torch.tensor([[0, 2, 2, 5], [5, 5, 5, 5], [1, 2, 3, 4]])
Made = Callable[[], tuple[nn.Module, Any]]
LAYERS: dict[str, Made] = {
    # five samples of five steps: time first looks just like samples first
    "time first": lambda: (
        Net(
            lambda net, y: net.inner(y.transpose(0, 1).reshape(-1, 3)).view(5, len(y), 2).transpose(0, 1),
            inner=nn.Linear(3, 2),
        ),
        x(5, 5, 3),
    ),
    "weighted bag": lambda: (
        nn.EmbeddingBag(6, 3, mode="sum"), {"input": torch.randint(6, (4, 5)), "per_sample_weights": x(4, 5)}
    ),
    "tied": lambda: (tied(False), torch.randint(6, (4, 5))),
    "tied, sparse": lambda: (tied(True), torch.randint(6, (4, 5))),
    "references in a list": lambda: (with_list(), x(5, 3)),
    "states that are given": lambda: (
        Net(started, inner=nn.LSTM(3, 4, batch_first=True), start=nn.Parameter(x(1, 1, 4))), x(5, 2, 3)
    ),
}  # fmt: skip
for sparse in (False, True):
    for options in ({}, {"padding_idx": -1}, {"max_norm": 0.5}, {"scale_grad_by_freq": True}):
        if not (sparse and "scale_grad_by_freq" in options):  # PyTorch has no such gradient
            LAYERS[f"table {options}{', sparse' * sparse}"] = lambda o=options, s=sparse: (
                nn.Sequential(nn.Embedding(6, 3, sparse=s, **o), nn.Flatten(), nn.Linear(12, 2)), IDS,
            )  # fmt: skip
    for mode in ("sum", "mean") if sparse else ("sum", "mean", "max"):
        LAYERS[f"bag {mode}{', sparse' * sparse}"] = lambda m=mode, s=sparse: (
            nn.Sequential(nn.EmbeddingBag(6, 3, mode=m, padding_idx=2, sparse=s), nn.Linear(3, 2)), IDS,
        )  # fmt: skip


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
    if "max_norm" in name or name in ("references in a list", "states that are given", "tied, sparse"):
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


def test_a_loss_that_reads_parameters() -> None:
    model = nn.Linear(3, 2, dtype=D)
    with pytest.warns(
        UserWarning, match="slow loop .* a parameter is used through a reference outside of the module"
    ):
        same(model, lambda y: smooth(y) + model.weight.square().sum(), x(5, 3), method="auto")


def test_recurrent_layers_go_by_the_loop() -> None:
    with pytest.warns(UserWarning, match=r"slow loop .* recurrent layers.*method='loop' silences"):
        same(nn.LSTM(3, 4, batch_first=True).double(), smooth, x(5, 2, 3), method="auto")


@pytest.mark.parametrize(
    "made",
    [
        lambda: (nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)), x(5, 2, 4)),
        lambda: (nn.Sequential(nn.Conv1d(3, 4, 2), nn.GroupNorm(1, 4), nn.PReLU(4)), x(5, 3, 6)),
    ],
    ids=["linear", "convolution"],
)
def test_layers_on_masked_inputs_equal_the_loop(made: Made) -> None:
    model, values = made()
    model, mask = model.double(), torch.rand(values.shape) > 0.4
    mask[1] = False
    given = mg.masked(values.masked_fill(~mask, float("nan")), mask)
    loss: Callable[..., Any] = lambda y: (y.sin() * 3).sum()  # noqa: E731
    expected = mg.per_sample_grad(model, loss, given, method="loop")
    for key, gradient in mg.per_sample_grad(model, loss, given, method="batched").items():
        assert gradient.isfinite().all()
        assert not gradient[1].any()
        torch.testing.assert_close(gradient, expected[key])
