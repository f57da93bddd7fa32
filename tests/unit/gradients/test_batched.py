"""batched_grad and batched_hessian against a double loop: all forms of arguments, masked tensors, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, on
from tests.unit.gradients.custom_functions import made_of
from tests.unit.gradients.sample_loop import network

D = torch.float64


def x(*sizes: int) -> Tensor:
    return torch.randn(sizes, dtype=D, requires_grad=True)


def jacobian(y: Tensor, by: Tensor) -> Tensor:
    """The derivative of the outputs (B, O) of each sample by its inputs, (B, O, *I), one backward pass for each."""

    def row(b: int, o: int) -> Tensor:
        return torch.autograd.grad(y[b, o], by, retain_graph=True)[0].to_dense()[b]

    return torch.stack([torch.stack([row(b, o) for o in range(y.shape[1])]) for b in range(len(y))])


def test_many_inputs_and_outputs() -> None:
    net, a, b = network(), x(5, 3), x(5)
    y, z = net(a) * b[:, None], a.sum(1) * b
    found = mg.batched_grad({"y": y, "z": z}, (a, [b]))
    for name, out in (("y", y), ("z", z[:, None])):
        first, (second,) = found[name]
        for got, one in ((first, a), (second, b)):
            expected = jacobian(out, one)
            torch.testing.assert_close(got, expected if name == "y" else expected[:, 0])


@pytest.mark.parametrize("sizes", [(0, 3, 2), (1, 3, 2), (4, 3, 0), (4, 0, 2)])
def test_nothing_and_one(sizes: tuple[int, int, int]) -> None:
    samples, features, outputs = sizes
    inputs = x(samples, features)
    y = (inputs @ x(features, outputs)).tanh()
    found = mg.batched_grad(y, inputs, create_graph=True)
    assert found.shape == (samples, outputs, features)
    if found.numel():
        torch.testing.assert_close(found, jacobian(y, inputs))
    assert mg.batched_hessian(y, inputs).shape == (samples, outputs, features, features)


def test_gradients_that_are_missing_are_zero() -> None:
    sparing = made_of(lambda x: 2 * x, lambda ctx, g: 2 * g if bool(g[:, 0].any()) else None)
    inputs = x(3, 2)
    found = mg.batched_grad(sparing.apply(inputs), inputs, coupling="independent")
    assert found[0].tolist() == [[2.0, 0.0], [0.0, 0.0]]


def written_in_place(inputs: Tensor) -> Tensor:
    buffer = torch.zeros(4, 4, dtype=D)
    buffer[:, 1:] = inputs.sin()
    buffer[:, 0] = inputs.prod(1)
    return buffer.tanh()


def checkpointed(inputs: Tensor) -> Tensor:
    once: Tensor = checkpoint(network(), inputs, use_reentrant=False)
    return checkpoint(nn.Dropout(0.4), once.sin(), use_reentrant=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.embedding(
            torch.arange(4), x, sparse=True
        ).tanh(),  # which has a sparse tensor as gradient
        lambda x: (torch.randn(5, 3, dtype=D).relu().to_sparse_csr() @ x.t()).t().tanh(),
        lambda x: nn.GRU(1, 2, bidirectional=True, batch_first=True, dtype=D)(x[..., None])[0][:, -1],
        lambda x: nn.Sequential(nn.Conv1d(1, 4, 2), nn.InstanceNorm1d(4), nn.Flatten()).to(D)(x[:, None]),
        checkpointed,
        written_in_place,
    ],
    ids=["table", "sparse product", "recurrent", "convolution", "checkpointed", "in place"],
)
def test_graphs_of_many_kinds(function: Callable[[Tensor], Tensor]) -> None:
    y = function(inputs := x(4, 3))
    state = torch.get_rng_state()
    found = mg.batched_grad(y, inputs)
    assert torch.equal(torch.get_rng_state(), state)  # the probe of coupling leaves random numbers alone
    torch.testing.assert_close(found, jacobian(y, inputs))
    found += 1  # no two entries share memory


def test_hessians() -> None:
    net, inputs, scale = network(), x(4, 3), x(4, 1)
    y = net(inputs * scale)
    found = mg.batched_hessian(y, {"x": inputs, "s": scale})
    both = (0, 1)
    hessian = torch.func.jacrev(torch.func.jacrev(lambda one, by: net(one * by), both), both)
    expected = torch.func.vmap(hessian)(inputs.detach(), scale.detach())
    torch.testing.assert_close(tuple(tuple(row.values()) for row in found.values()), expected)
    assert not mg.batched_hessian(inputs.sum(1), inputs).any()
    third = mg.batched_grad(mg.batched_hessian((inputs**4).sum(1), inputs, create_graph=True), inputs)
    torch.testing.assert_close(third.sum((1, 2)), 24 * inputs.detach())
    centred = F.batch_norm(inputs, None, None, training=True)
    with pytest.raises(mg.CoupledSamplesError):
        mg.batched_hessian((centred**2 * inputs).sum(1), inputs)


# masked tensors


@pytest.mark.parametrize("layout", [torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_masked_inputs(layout: torch.layout) -> None:
    dense = mg.masked(torch.tensor([[1.0, nan, 3.0], [inf, 2.0, 5.0]], dtype=D), on([1, 0, 1], [0, 1, 1]))
    stored = (dense if layout == torch.strided else dense.to_sparse(layout=layout)).requires_grad_()
    with torch.autograd.set_detect_anomaly(True):
        assert_entries(
            mg.batched_grad((stored * stored).sum(1), stored), [[2.0, None, 6.0], [None, 4.0, 10.0]]
        )
        found = mg.batched_grad(stored * stored, stored)
    assert found.layout == torch.strided
    assert found.mask.equal(dense.mask[:, :, None] & dense.mask[:, None, :])
    assert not found._values[~found.mask].any()
    assert_entries(found[1], [[None] * 3, [None, 4.0, 0.0], [None, 0.0, 10.0]])
    if layout == torch.strided:
        hessian = mg.batched_hessian((stored**3).sum(1), stored)
        assert_entries(hessian[0], [[6.0, None, 0.0], [None, None, None], [0.0, None, 18.0]])


def test_masked_outputs() -> None:
    inputs = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=D, requires_grad=True)
    y = mg.masked(inputs.prod(1, keepdim=True) * inputs, on([1, 0], [0, 1]))
    found = mg.batched_grad(y, inputs)
    nothing = [None, None]
    assert_entries(found, [[[4.0, 1.0], nothing], [nothing, [16.0, 24.0]]])
    assert found._values[0, 1].tolist() == [0.0, 0.0]


# refusals


def test_third_derivatives_that_torch_gets_wrong() -> None:
    inputs = x(3, 4)
    z = inputs.sin()
    for layer, name in (
        (lambda y: F.layer_norm(y, (4,)), "layer"),
        (lambda y: F.instance_norm(y[:, None])[:, 0], "batch"),
    ):
        y = layer(z).square()
        mg.batched_hessian(y, inputs)  # second derivatives are right
        with pytest.raises(NotImplementedError, match=rf"connected by {name} normalization, whose "):
            mg.batched_hessian(y, inputs, create_graph=True)
        mg.batched_hessian((z**3).sum(1) + layer(inputs.detach()).sum(1), z, create_graph=True)  # not between


def test_inputs_outside_the_graph() -> None:
    inputs, other = x(2, 3), x(2, 1)
    y = inputs**2
    with pytest.raises(ValueError, match=r"inputs\[1\] is not part of the graph of outputs"):
        mg.batched_grad(y, (inputs, other))
    zeros = mg.batched_grad(y, (inputs, other), materialize_grads=True)[1]
    assert zeros.shape == (2, 3, 1)
    assert not zeros.any()
    hessians = mg.batched_hessian(y, (inputs, other), materialize_grads=True)
    assert [[h.shape[2:] for h in row] for row in hessians] == [[(3, 3), (3, 1)], [(1, 3), (1, 1)]]
    masked = mg.masked(other, on([1], [0]))
    assert mg.batched_grad(y, masked, materialize_grads=True).mask[1].any().item() is False


@pytest.mark.parametrize(
    ("outputs", "inputs", "options", "kind", "message"),
    [
        (lambda x: (x**2).sum(), lambda x: x, {}, ValueError, "outputs must have shape"),
        (lambda x: x.detach(), lambda x: x, {}, ValueError, "outputs is not part of a graph"),
        (lambda x: x**2, lambda x: torch.ones(2, 2), {}, ValueError, "inputs does not require grad"),
        (lambda x: [x**2, 3], lambda x: x, {}, TypeError, r"outputs\[1\] must be a tensor, found int"),
        (lambda x: x**2, lambda x: (), {}, ValueError, "at least one tensor"),
        (lambda x: (x**2)[:1], lambda x: x, {}, ValueError, "inputs must have shape .* with B = 1.*mg.per_sample_grad"),
        (lambda x: x**2, lambda x: x, {"coupling": "exact"}, ValueError, r"torch.autograd.functional.jacobian\(f, x\)"),
    ],
)  # fmt: skip
def test_mistakes_are_named(
    outputs: Any, inputs: Any, options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    leaf = x(2, 3)
    with pytest.raises(kind, match=message):
        mg.batched_grad(outputs(leaf), inputs(leaf), **options)
