"""batched_grad and batched_hessian against a double loop: all of torch.nn, all forms of arguments, masked tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, on
from tests.unit.gradients.module_zoo import diagonal, whole_jacobian

D = torch.float64


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inside, outside in itertools.pairwise(sizes):
        layers += [nn.Linear(inside, outside), nn.Tanh()]
    return nn.Sequential(*layers).to(D)


def test_many_inputs_and_outputs() -> None:
    net = mlp(3, 4, 2)
    a, b = torch.randn(5, 3, dtype=D, requires_grad=True), torch.randn(5, dtype=D, requires_grad=True)
    y, z = net(a) * b[:, None], a.sum(1) * b
    found = mg.batched_grad({"y": y, "z": z}, (a, [b]))
    assert set(found) == {"y", "z"}
    assert isinstance(found["y"], tuple)
    assert isinstance(found["y"][1], list)
    for name, out in (("y", y), ("z", z[:, None])):
        for got, x in ((found[name][0], a), (found[name][1][0], b)):
            expected = diagonal(whole_jacobian(out, x))
            torch.testing.assert_close(got, expected if name == "y" else expected[:, 0])


@pytest.mark.parametrize("coupling", ["check", "independent"])
@pytest.mark.parametrize("sizes", [(0, 3, 2), (1, 3, 2), (4, 3, 0), (0, 0, 0), (4, 0, 2)])
def test_nothing_and_one(sizes: tuple[int, int, int], coupling: str) -> None:
    samples, features, outputs = sizes
    x = torch.randn(samples, features, dtype=D, requires_grad=True)
    y = (x @ torch.randn(features, outputs, dtype=D)).tanh()
    found = mg.batched_grad(y, x, create_graph=True, coupling=coupling)
    assert found.shape == (samples, outputs, features)
    if found.numel():
        torch.testing.assert_close(found, diagonal(whole_jacobian(y, x)))
    assert mg.batched_hessian(y, x, coupling=coupling).shape == (samples, outputs, features, features)


class _Sparing(torch.autograd.Function):
    """Gives a gradient of the first output only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor | None:  # type: ignore[override]
        return 2 * gradient if bool(gradient[:, 0].any()) else None


def test_gradients_that_are_missing_are_zero() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    found = mg.batched_grad(_Sparing.apply(x), x, coupling="independent")
    assert found[0].tolist() == [[2.0, 0.0], [0.0, 0.0]]


def rows_of_a_table() -> tuple[Tensor, Tensor]:
    rows = torch.randn(4, 3, dtype=D, requires_grad=True)  # the gradient of which is a sparse tensor
    return nn.functional.embedding(torch.arange(4), rows, sparse=True).tanh(), rows


def a_sparse_product() -> tuple[Tensor, Tensor]:
    x = torch.randn(4, 3, dtype=D, requires_grad=True)
    return (torch.randn(5, 3, dtype=D).relu().to_sparse_csr() @ x.t()).t().tanh(), x


def checkpointed() -> tuple[Tensor, Tensor]:
    x = torch.randn(4, 3, dtype=D, requires_grad=True)
    second = nn.Sequential(nn.Dropout(0.4), *mlp(5, 2))
    return checkpoint(second, checkpoint(mlp(3, 5), x, use_reentrant=False), use_reentrant=False), x


def written_in_place() -> tuple[Tensor, Tensor]:
    x = torch.randn(4, 3, dtype=D, requires_grad=True)
    buffer = torch.zeros(4, 4, dtype=D)
    buffer[:, 1:] = x.sin()
    buffer[:, 0] = x.prod(1)
    return buffer.tanh(), x


@pytest.mark.parametrize(
    "made",
    [
        rows_of_a_table,
        a_sparse_product,
        checkpointed,
        written_in_place,
    ],
)
def test_sparse_checkpointed_and_in_place_graphs(made: Callable[[], tuple[Tensor, Tensor]]) -> None:
    y, x = made()
    state = torch.get_rng_state()
    found = mg.batched_grad(y, x)
    assert torch.equal(torch.get_rng_state(), state)  # the probe of coupling leaves random numbers alone
    expected = diagonal(whole_jacobian(y.reshape(4, -1), x))
    torch.testing.assert_close(found, expected.reshape(*y.shape, *x.shape[1:]))
    found += 1  # no two entries share memory


# masked tensors


def test_masked_input() -> None:
    values = torch.tensor([[1.0, nan, 3.0], [inf, 2.0, 5.0]], dtype=D, requires_grad=True)
    x = mg.masked(values, on([1, 0, 1], [0, 1, 1]))
    with torch.autograd.set_detect_anomaly(True):
        assert_entries(mg.batched_grad((x * x).sum(1), x), [[2.0, None, 6.0], [None, 4.0, 10.0]])
        found = mg.batched_grad(x * x, x)
    assert found.mask.tolist() == (x.mask[:, :, None] & x.mask[:, None, :]).tolist()
    assert not found._values[~found.mask].any()
    hessian = mg.batched_hessian((x**3).sum(1), x)
    assert hessian.mask.tolist() == found.mask.tolist()
    assert_entries(hessian[0], [[6.0, None, 0.0], [None, None, None], [0.0, None, 18.0]])


def test_masked_output() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=D, requires_grad=True)
    y = mg.masked(x.prod(1, keepdim=True) * x, on([1, 0], [0, 1]))
    found = mg.batched_grad(y, x)
    nothing = [None, None]
    assert_entries(found, [[[4.0, 1.0], nothing], [nothing, [16.0, 24.0]]])
    assert found._values[0, 1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_stored_entries(layout: torch.layout) -> None:
    dense = mg.masked(torch.tensor([[1.0, nan, 3.0], [inf, 2.0, 5.0]], dtype=D), on([1, 0, 1], [0, 1, 1]))
    x = dense.to_sparse(layout=layout).requires_grad_()
    found = mg.batched_grad((x * x).sum(1), x)
    assert found.layout == torch.strided
    assert_entries(found, [[2.0, None, 6.0], [None, 4.0, 10.0]])
    every = mg.batched_grad(x * x, x)
    assert every.mask.tolist() == (dense.mask[:, :, None] & dense.mask[:, None, :]).tolist()
    assert_entries(every[1], [[None] * 3, [None, 4.0, 0.0], [None, 0.0, 10.0]])


# refusals


def test_inputs_outside_the_graph() -> None:
    x, other = torch.ones(2, 3, requires_grad=True), torch.ones(2, 1, requires_grad=True)
    y = x**2
    with pytest.raises(ValueError, match=r"inputs\[1\] is not part of the graph of outputs"):
        mg.batched_grad(y, (x, other))
    zeros = mg.batched_grad(y, (x, other), materialize_grads=True)[1]
    assert zeros.shape == (2, 3, 1)
    assert not zeros.any()
    hessians = mg.batched_hessian(y, (x, other), materialize_grads=True)
    assert hessians[0][1].shape == (2, 3, 3, 1)
    assert hessians[1][1].shape == (2, 3, 1, 1)
    masked = mg.masked(other, on([1], [0]))
    assert mg.batched_grad(y, masked, materialize_grads=True).mask[1].any().item() is False


@pytest.mark.parametrize(
    ("outputs", "inputs", "options", "kind", "message"),
    [
        (lambda x: (x**2).sum(), lambda x: x, {}, ValueError, "outputs must have shape"),
        (lambda x: x.detach(), lambda x: x, {}, ValueError, "outputs is not part of a graph"),
        (lambda x: x**2, lambda x: torch.ones(2, 2), {}, ValueError, "inputs does not require grad"),
        (lambda x: [x**2, 3], lambda x: x, {}, TypeError, r"outputs\[1\] must be a tensor, found int"),
        (lambda x: x**2, lambda x: iter([x]), {}, TypeError, "inputs must be a tensor"),
        (lambda x: x**2, lambda x: (), {}, ValueError, "at least one tensor"),
        (lambda x: (x**2)[:1], lambda x: x, {}, ValueError, "inputs must have shape .* with B = 1.*mg.per_sample_grad"),
        (lambda x: x**2, lambda x: x, {"coupling": "none"}, ValueError, "coupling must be"),
        (lambda x: x**2, lambda x: x, {"coupling": "exact"}, ValueError, r"torch.autograd.functional.jacobian\(f, x\)"),
    ],
)  # fmt: skip
def test_mistakes_are_named(
    outputs: Any, inputs: Any, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(kind, match=message):
        mg.batched_grad(outputs(x), inputs(x), **options)


def test_hessians() -> None:
    net = mlp(3, 5, 2)
    x, s = torch.randn(4, 3, dtype=D, requires_grad=True), torch.randn(4, 1, dtype=D, requires_grad=True)
    y = net(x * s)
    found = mg.batched_hessian(y, {"x": x, "s": s})
    both = (0, 1)
    hessian = torch.func.jacrev(torch.func.jacrev(lambda one, by: net(one * by), both), both)
    expected = torch.func.vmap(hessian)(x.detach(), s.detach())
    names = ("x", "s")
    for i, first in enumerate(names):
        for j, second in enumerate(names):
            torch.testing.assert_close(found[first][second], expected[i][j])
    assert not mg.batched_hessian(x.sum(1), x).any()
    third = mg.batched_grad(mg.batched_hessian((x**4).sum(1), x, create_graph=True), x)
    torch.testing.assert_close(third.sum((1, 2)), 24 * x.detach())
    centred = nn.functional.batch_norm(x, None, None, training=True)
    with pytest.raises(mg.CoupledSamplesError):
        mg.batched_hessian((centred**2 * x).sum(1), x)
