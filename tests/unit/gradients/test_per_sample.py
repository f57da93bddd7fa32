"""Gradients for each sample: arguments, forms of batches, what is missing, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maskgrad as mg
from tests.unit.gradients.sample_loop import METHODS, assert_equal_to_the_loop, loop, network, smooth

nan, inf = float("nan"), float("inf")
D = torch.float64
X, TARGETS = torch.randn(4, 3, dtype=D), torch.randn(4, 2, dtype=D)


def test_arguments_by_position_by_name_and_in_containers() -> None:
    class Several(nn.Linear):
        def forward(  # type: ignore[override]
            self, a: Tensor, b: dict[str, Tensor], flip: bool = False, c: Tensor | None = None
        ) -> Any:
            y = super().forward(a) * b["scale"] + (0 if c is None else c)
            return {"y": -y if flip else y}

    def loss(output: Any, target: Any) -> Tensor:
        return F.mse_loss(output["y"], target["t"][0])

    model, b = Several(3, 2, dtype=D), {"scale": torch.randn(4, 1, dtype=D)}
    for inputs in ((X, b), (X, b, True), {"a": X, "b": b, "flip": False, "c": TARGETS}):
        assert_equal_to_the_loop(model, loss, inputs, {"t": (TARGETS,)}, method="batched")


@METHODS
def test_a_batch_without_samples(method: Any) -> None:
    model = nn.Sequential(nn.Embedding(50, 3, sparse=True, dtype=D), nn.Linear(3, 2, dtype=D))
    ids = torch.empty(0, 4, dtype=torch.long)
    found = mg.per_sample_grad(model, smooth, ids, method=method)
    assert [(g.shape, g.is_sparse) for g in found.values()][:2] == [((0, 50, 3), True), ((0, 2, 3), False)]
    assert mg.per_sample_grad_norms(model, smooth, ids).shape == (0,)
    assert mg.clipped_backward(model, smooth, ids, max_norm=1.0).shape == (0,)


@METHODS
@pytest.mark.parametrize("garbage", [nan, inf, 1e38])
def test_samples_and_inputs_that_are_missing(garbage: float, method: Any) -> None:
    model = network()
    known = torch.tensor([[1, 0, 1], [1, 1, 1], [0, 0, 0], [0, 1, 0]]).bool()
    incomplete = mg.masked(X.masked_fill(~known, garbage), known)
    zeros = loop(model, F.mse_loss, X.masked_fill(~known, 0), TARGETS)
    found = mg.per_sample_grad(model, F.mse_loss, incomplete, TARGETS, method=method)
    for name, gradient in found.items():
        torch.testing.assert_close(
            gradient, zeros[name] * torch.tensor([1, 1, 0, 1]).view(4, *[1] * (gradient.dim() - 1))
        )


@METHODS
def test_targets_that_are_missing_and_another_loss(method: Any) -> None:
    """A sample of which nothing is specified has no gradient, whatever is in it; another loss keeps its own."""
    model, known = network(), torch.tensor([[1, 1], [1, 0], [0, 0], [0, 1]]).bool()
    targets = mg.masked(TARGETS.masked_fill(~known, nan), known)
    spoiled = X.clone()
    spoiled[2] = inf
    alone = [
        loop(model, lambda y, i=i: F.mse_loss(y[known[i : i + 1]], TARGETS[i][known[i]]), X[i : i + 1])
        for i in (0, 1, 3)
    ]
    for inputs in (X, spoiled):
        found = mg.per_sample_grad(model, F.mse_loss, inputs, targets, method=method)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient[[0, 1, 3]], torch.cat([one[name] for one in alone]))
            assert not gradient[2].any()
        model.zero_grad()
        norms = mg.clipped_backward(model, F.mse_loss, inputs, targets, max_norm=inf, method=method)
        assert norms.bool().tolist() == [True, True, False, True]
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.grad, found[name].sum(0) / 3)  # of the samples that have a loss

    def both(y: Tensor, given: Any) -> Any:
        return F.mse_loss(y, given[0]) + 0.1 * F.mse_loss(y, given[1])

    main = loop(model, F.mse_loss, X, TARGETS)
    model.zero_grad()
    mg.clipped_backward(model, both, X, (TARGETS, targets), max_norm=inf, method=method)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, (main[name] + 0.1 * found[name]).mean(0))  # all four samples count


@METHODS
def test_a_real_nan_is_no_missing_target(method: Any) -> None:
    """Of NaN the absolute error has the derivative 0: a sample of nothing is not told by its gradient alone."""
    model, x = network(), torch.randn(3, 3, dtype=D)
    x[1] = nan
    t = mg.masked(torch.zeros(3, 2, dtype=D), torch.tensor([[1, 1], [1, 1], [0, 0]]).bool())
    norms = mg.per_sample_grad_norms(model, F.l1_loss, x, t, method=method)
    assert norms.isnan().tolist() == [False, True, False]
    assert norms[2] == 0


def test_under_autocast_gradients_have_the_dtype_of_their_parameters() -> None:
    """And their sums are not rounded: a loop over samples under autocast is the oracle."""
    net, x, t = nn.Linear(3, 2), torch.randn(4, 5, 3), torch.zeros(4, 5, 2)
    inputs = mg.from_lengths(x, torch.tensor([1, 5, 2, 3]))
    with torch.autocast("cpu", torch.bfloat16):
        found = mg.per_sample_grad(net, F.mse_loss, inputs, t, method="batched")
        norms = mg.per_sample_grad_norms(net, F.mse_loss, inputs, t)
        losses = [F.mse_loss(net(inputs[i : i + 1]), t[:1]) for i in range(4)]
    for name, p in net.named_parameters():
        expected = torch.stack([torch.autograd.grad(loss, p, retain_graph=True)[0] for loss in losses])
        torch.testing.assert_close(found[name], expected, rtol=0.02, atol=1e-3)
    squares = sum(part.flatten(1).double().square().sum(1) for part in found.values())
    torch.testing.assert_close(norms.double(), squares.sqrt(), rtol=1e-5, atol=0)


class Normed(nn.Linear):
    """Couples its samples by a function."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(super().forward(x), None, None, training=True)


def of(
    inputs: Any, targets: Any = None, model: nn.Module | None = None, loss: Any = smooth, **options: Any
) -> Any:
    return mg.per_sample_grad(model or network(), loss, inputs, targets, **options)


COUPLED = mg.errors.CoupledSamplesError
EYE = torch.eye(3, dtype=D)
NESTED = torch.nested.nested_tensor([EYE, EYE[:1]], layout=torch.jagged)
PACKED = nn.utils.rnn.pack_sequence([EYE, EYE[:1]])
BAGS = (torch.tensor([1, 2, 3, 1, 5, 6]), torch.tensor([0, 2, 3]))


def test_compressed_layouts_go_by_the_loop() -> None:
    with pytest.warns(UserWarning, match=r"layout torch.sparse_csr.*pass x.to_dense\(\)"):
        of(mg.from_sparse(EYE.to_sparse_csr()))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: of(X, model=torch.sin), TypeError, "model must be a torch.nn.Module"),  # type: ignore[arg-type]
        (lambda: of(X, loss=3), TypeError, "loss_fn must be callable"),
        (lambda: of([X]), TypeError, "found a list"),
        (lambda: of(3), TypeError, "at least one tensor"),
        (lambda: of(torch.tensor(1.0)), ValueError, "0-dim"),
        (lambda: of((X, X[:2])), ValueError, "inputs must have 4 samples"),
        (lambda: of(X, (X, X[:2])), ValueError, "targets must have 4 samples"),
        (lambda: of(X, chunk_size=0), ValueError, "chunk_size"),
        (lambda: of(X, method="fast"), ValueError, "'batched'"),
        (lambda: of(X, loss=lambda y: y), ValueError, "a scalar for one sample"),
        (lambda: of(X, loss=lambda y: 3.0), TypeError, "must return a tensor"),
        (lambda: of(X, loss=lambda y: y.detach().sum()), ValueError, "depends on no parameter"),
        (lambda: of(X, model=network().requires_grad_(False)), ValueError, "no parameter"),
        (lambda: of(torch.randn(4, 9, dtype=D)), RuntimeError, "shapes"),
        (lambda: of(X, model=nn.Sequential(nn.BatchNorm1d(3))), COUPLED, r"0 \(.*BatchNorm.*GroupNorm"),
        (lambda: of(X, model=nn.BatchNorm1d(3, track_running_stats=False).eval()), COUPLED, "it .*GroupNorm"),
        (lambda: of(X, model=Normed(3, 3, dtype=D)), COUPLED, "training=True"),
        (lambda: of(BAGS), ValueError, r"mg.from_offsets\(rows, .*pad\(offsets, \(0, 1\), value=len\(rows\)\)"),
        (lambda: of(PACKED), TypeError, r"pad_packed_sequence\(packed.*batch_first=True for recurrent"),
        (lambda: of(NESTED), TypeError, r"inputs must be .*; write mg.from_nested\(x\)"),
        (lambda: of(EYE.to_sparse_csr()), TypeError, r"inputs must be .*; write mg.from_sparse\(x\)"),
        (lambda: mg.clipped_backward(network(), smooth, X, max_norm=-1.0), ValueError, "max_norm"),
        (lambda: mg.clipped_backward(network(), smooth, X, max_norm=1.0, reduction="none"), ValueError, "reduction"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_mistakes_are_named(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
