"""Gradients for each sample: options, norms, clipping, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maskgrad as mg
from tests.unit.gradients.sample_loop import METHODS, loop, network, smooth

nan = float("nan")
D = torch.float64


class Words(nn.Module):
    """A sparse table, a dense one, and a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse = nn.Embedding(50, 3, sparse=True, dtype=D)
        self.dense = nn.Embedding(7, 3, dtype=D)
        self.unused = nn.Embedding(40, 3, sparse=True, dtype=D)
        self.idle = nn.Parameter(torch.zeros(2, dtype=D))
        self.out = nn.Linear(3, 2, dtype=D)

    def forward(self, ids: Tensor) -> Tensor:
        """Mean of the words, ids (B, n)."""
        out: Tensor = self.out((self.sparse(ids) * self.dense(ids % 7)).mean(1))
        return out


@METHODS
@pytest.mark.parametrize("chunk_size", [None, 1, 2, 7])
def test_the_result_is_the_definition(method: Any, chunk_size: int | None) -> None:
    for model, x in ((network(), torch.randn(5, 3, dtype=D)), (Words(), torch.randint(50, (5, 4)))):
        expected = loop(model, smooth, x)
        found = mg.per_sample_grad(model, smooth, x, chunk_size=chunk_size, method=method)
        assert list(found) == [name for name, _ in model.named_parameters()]
        for name, gradient in found.items():
            assert not gradient.requires_grad
            torch.testing.assert_close(gradient.to_dense(), expected[name])


def test_arguments_by_position_by_name_and_in_containers() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2, dtype=D)

        def forward(
            self, a: Tensor, b: dict[str, Tensor], flip: bool = False, c: Tensor | None = None
        ) -> Any:
            y = self.inner(a) * b["scale"] + (0 if c is None else c)
            return {"y": -y if flip else y}

    model = Several()
    a, b, t = torch.randn(4, 3, dtype=D), {"scale": torch.randn(4, 1, dtype=D)}, torch.randn(4, 2, dtype=D)

    def loss(output: Any, target: Any) -> Tensor:
        return F.mse_loss(output["y"], target["t"][0])

    for inputs in ((a, b), (a, b, True), {"a": a, "b": b, "flip": False, "c": t}):
        expected = loop(model, loss, inputs, {"t": (t,)})
        found = mg.per_sample_grad(model, loss, inputs, {"t": (t,)}, method="batched")
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient)


@METHODS
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_norms_and_clipped_sums_are_those_of_the_gradients(method: Any, chunk_size: int | None) -> None:
    options = {"method": method, "chunk_size": chunk_size}
    convolution = nn.Sequential(
        nn.Conv2d(2, 4, 2, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 1)
    ).double()
    cases: list[tuple[nn.Module, Tensor]] = [
        (network(), torch.randn(5, 3, dtype=D)),
        (network(), torch.randn(5, 4, 3, dtype=D)),
        (convolution, torch.randn(5, 2, 3, 3, dtype=D)),
        (Words(), torch.randint(50, (5, 4))),
    ]
    for model, x in cases:
        gradients = loop(model, smooth, x)
        norms = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0).sqrt()
        torch.testing.assert_close(mg.per_sample_grad_norms(model, smooth, x, **options), norms)
        limit = norms.median().item()
        factors = (limit / (norms + 1e-6)).clamp(max=1)
        for reduction, number in (("sum", 1), ("mean", 5)):
            for p in model.parameters():
                p.grad = None
            for rounds in (1, 2):
                found = mg.clipped_backward(
                    model, smooth, x, max_norm=limit, reduction=reduction, **options  # type: ignore[arg-type]
                )  # fmt: skip
                torch.testing.assert_close(found, norms)
                for name, p in model.named_parameters():
                    if name in ("unused.weight", "idle"):
                        assert p.grad is None
                        continue
                    assert p.grad is not None
                    assert (p.grad.layout is torch.sparse_coo) == (name == "sparse.weight")
                    expected = torch.einsum("b,b...->...", factors, gradients[name]) * rounds / number
                    torch.testing.assert_close(p.grad.to_dense(), expected)


@METHODS
def test_a_batch_without_samples(method: Any) -> None:
    found = mg.per_sample_grad(Words(), smooth, torch.empty(0, 4, dtype=torch.long), method=method)
    assert found["out.weight"].shape == (0, 2, 3)
    assert found["sparse.weight"].shape == (0, 50, 3)
    assert found["sparse.weight"].layout is torch.sparse_coo
    model = network()
    assert mg.per_sample_grad_norms(model, smooth, torch.empty(0, 3, dtype=D)).shape == (0,)
    assert mg.clipped_backward(model, smooth, torch.empty(0, 3, dtype=D), max_norm=1.0).shape == (0,)


def test_memory_of_a_table_is_proportional_to_its_lookups() -> None:
    model = nn.Sequential(nn.Embedding(100_000, 16, sparse=True), nn.Flatten(), nn.Linear(64, 1))
    ids = torch.randint(100_000, (64, 4))
    found = mg.per_sample_grad(model, smooth, ids)["0.weight"]
    stored = found.values().numel() * 4 + found.indices().numel() * 8
    assert stored < 0.01 * 64 * 100_000 * 16 * 4


X = torch.randn(4, 3, dtype=D)


class Normed(nn.Linear):
    """Couples its samples by a function."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(super().forward(x), None, None, training=True)


def normed(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), norm).double()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (normed(nn.BatchNorm1d(3)), r"1 \(.*BatchNorm.*GroupNorm"),
        (normed(nn.SyncBatchNorm(3)), r"1 \(.*BatchNorm.*GroupNorm"),
        (normed(nn.BatchNorm1d(3, track_running_stats=False).eval()), r"1 \(.*BatchNorm.*GroupNorm"),
        (Normed(3, 3, dtype=D), "training=True"),
    ],
)
def test_batch_normalization_is_refused(model: nn.Module, words: str) -> None:
    with pytest.raises(mg.errors.CoupledSamplesError, match=words):
        mg.per_sample_grad(model, smooth, X)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: mg.per_sample_grad(torch.sin, smooth, X), TypeError, "model must be a torch.nn.Module"),  # type: ignore[arg-type]
        (lambda: mg.per_sample_grad(network(), 3, X), TypeError, "loss_fn must be callable"),  # type: ignore[arg-type]
        (lambda: mg.per_sample_grad(network(), smooth, [X]), TypeError, "found a list"),
        (lambda: mg.per_sample_grad(network(), smooth, 3), TypeError, "at least one tensor"),
        (lambda: mg.per_sample_grad(network(), smooth, torch.tensor(1.0)), ValueError, "0-dim"),
        (lambda: mg.per_sample_grad(network(), smooth, (X, X[:2])), ValueError, "inputs must have 4 samples"),
        (lambda: mg.per_sample_grad(network(), smooth, X, X[:2]), ValueError, "targets must have 4 samples"),
        (lambda: mg.per_sample_grad(network(), smooth, X, chunk_size=0), ValueError, "chunk_size"),
        (lambda: mg.per_sample_grad(network(), smooth, X, method="fast"), ValueError, "'batched'"),  # type: ignore[arg-type]
        (lambda: mg.per_sample_grad(network(), lambda y: y, X), ValueError, "a scalar for one sample"),
        (lambda: mg.per_sample_grad(network(), lambda y: 3.0, X), TypeError, "must return a tensor"),
        (lambda: mg.per_sample_grad(network(), lambda y: y.detach().sum(), X), ValueError, "depends on no parameter"),
        (lambda: mg.per_sample_grad(network().requires_grad_(False), smooth, X), ValueError, "no parameter"),
        (lambda: mg.clipped_backward(network(), smooth, X, max_norm=-1.0), ValueError, "max_norm"),
        (lambda: mg.clipped_backward(network(), smooth, X, max_norm=nan), ValueError, "max_norm"),
        (lambda: mg.clipped_backward(network(), smooth, X, max_norm=1.0, reduction="none"), ValueError, "reduction"),  # type: ignore[arg-type]
        (lambda: mg.per_sample_grad(network(), smooth, torch.randn(4, 9, dtype=D)), RuntimeError, "shapes"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.parametrize("masked", [False, True])
def test_under_autocast_gradients_have_the_dtype_of_their_parameters(masked: bool) -> None:
    """And their sums are not rounded: a loop over samples under autocast is the oracle."""
    net = torch.nn.Linear(3, 2)
    x = torch.randn(4, 5, 3)
    inputs = mg.from_lengths(x, torch.tensor([1, 5, 2, 3])) if masked else x
    with torch.autocast("cpu", torch.bfloat16):
        found = mg.per_sample_grad(net, F.mse_loss, inputs, torch.zeros(4, 5, 2), method="batched")
        norms = mg.per_sample_grad_norms(net, F.mse_loss, inputs, torch.zeros(4, 5, 2))
        each = []
        for i in range(4):
            net.zero_grad()
            F.mse_loss(net(inputs[i : i + 1]), torch.zeros(1, 5, 2)).backward()
            each.append([p.grad for p in net.parameters()])
    assert all(part.dtype is torch.float32 for part in found.values())
    for part, expected in zip(found.values(), zip(*each, strict=True), strict=True):
        torch.testing.assert_close(part, torch.stack(expected), rtol=0.02, atol=1e-3)
    squares = sum(part.flatten(1).double().square().sum(1) for part in found.values())
    torch.testing.assert_close(norms.double(), squares.sqrt(), rtol=1e-5, atol=0)
