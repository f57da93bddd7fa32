"""batched_vjp and batched_jvp against products with Jacobians that a double loop has computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import maskgrad as mg
from tests.poison import assert_entries, inf, nan, on
from tests.unit.gradients.module_zoo import whole_jacobian

D = torch.float64


def example() -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (4, 2, 3), an input (4, 5), and the Jacobians (4, 2, 3, 5)."""
    net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 6), nn.Unflatten(1, (2, 3))).to(D)
    x = torch.randn(4, 5, dtype=D, requires_grad=True)
    y = net(x)
    whole = whole_jacobian(y.flatten(1), x)
    return y, x, torch.stack([whole[b, :, b] for b in range(4)]).reshape(4, 2, 3, 5)


@pytest.mark.parametrize("coupling", ["check", "exact", "independent"])
@pytest.mark.parametrize("number", [(), (1,), (6,), (2, 3), (0,)])
@pytest.mark.parametrize("chunk_size", [None, 1, 4])
def test_plain(number: tuple[int, ...], coupling: str, chunk_size: int | None) -> None:
    y, x, jacobians = example()
    v, u = torch.randn(4, *number, 2, 3, dtype=D), torch.randn(4, *number, 5, dtype=D)
    vjp = mg.batched_vjp(y, x, v, chunk_size=chunk_size, coupling=coupling)
    torch.testing.assert_close(vjp, torch.einsum("b...op,bopi->b...i", v, jacobians))
    jvp = mg.batched_jvp(y, x, u, chunk_size=chunk_size, coupling=coupling)
    torch.testing.assert_close(jvp, torch.einsum("b...i,bopi->b...op", u, jacobians))


def test_coupled() -> None:
    x = torch.randn(4, 5, dtype=D, requires_grad=True)
    y = F.batch_norm(x, None, None, training=True).sin()
    v, u = torch.randn(4, 5, dtype=D), torch.randn(4, 5, dtype=D)
    for product, vector in ((mg.batched_vjp, v), (mg.batched_jvp, u)):
        with pytest.raises(mg.CoupledSamplesError, match="exact"):
            product(y, x, vector)
    jacobians = mg.batched_grad(y, x, coupling="exact")
    torch.testing.assert_close(
        mg.batched_vjp(y, x, v, coupling="exact"), torch.einsum("bo,boi->bi", v, jacobians)
    )
    torch.testing.assert_close(
        mg.batched_jvp(y, x, u, coupling="exact"), torch.einsum("bi,boi->bo", u, jacobians)
    )


@pytest.mark.parametrize("product", [mg.batched_vjp, mg.batched_jvp])
@pytest.mark.parametrize("coupling", ["check", "exact"])
def test_second_order(product: Any, coupling: str) -> None:
    x = torch.randn(4, 5, dtype=D, requires_grad=True)
    u = torch.randn(4, 5, dtype=D, requires_grad=True)

    def squares(x: Tensor, u: Tensor) -> Tensor:
        return product(x * x.sin(), x, u, create_graph=True, coupling=coupling)

    assert torch.autograd.gradcheck(squares, (x, u))


def test_nests() -> None:
    a, b = torch.randn(4, 3, dtype=D, requires_grad=True), torch.randn(4, dtype=D, requires_grad=True)
    y, z = a.sin() * b[:, None], a.prod(1)
    v, w = torch.randn(4, 3, dtype=D), torch.randn(4, dtype=D)
    found = mg.batched_vjp({"y": y, "z": z}, (a, b), {"y": v, "z": w})
    expected = torch.autograd.grad([y, z], [a, b], [v, w], retain_graph=True)
    torch.testing.assert_close(found, expected)
    moved = mg.batched_jvp({"y": y, "z": z}, (a, b), (v, w))
    of_y, of_z = mg.batched_grad(y, (a, b)), mg.batched_grad(z, a)
    torch.testing.assert_close(moved["y"], torch.einsum("boi,bi->bo", of_y[0], v) + of_y[1] * w[:, None])
    torch.testing.assert_close(moved["z"], (of_z * v).sum(1))


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * ctx.saved_tensors[0] * gradient


def test_without_second_derivatives() -> None:
    x = torch.randn(4, 3, dtype=D, requires_grad=True)
    u = torch.randn(4, 2, 3, dtype=D)
    torch.testing.assert_close(mg.batched_jvp(_Once.apply(x), x, u), 2 * x.detach()[:, None] * u)


class _Wrong(torch.autograd.Function):
    """Its gradient is right, and the graph of its gradient is not: the cotangent is a constant in it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return 2 * ctx.saved_tensors[0] * (gradient.detach() + 0 * gradient)


def test_wrong_second_derivatives_are_noticed() -> None:
    x, u = torch.randn(4, 3, dtype=D, requires_grad=True), torch.randn(4, 3, dtype=D)
    torch.testing.assert_close(mg.batched_jvp(_Wrong.apply(x), x, u), 2 * x.detach() * u)
    # PyTorch's own are wrong through a sparse tensor made of values.
    at = torch.tensor([[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 1, 1, 0, 1, 1, 1]])
    v = torch.randn(4, 2, dtype=D, requires_grad=True)
    y = torch.sparse_coo_tensor(at, (v * v).reshape(-1), (4, 2)).coalesce().to_dense()
    expected = torch.einsum("boi,bi->bo", mg.batched_grad(y, v), u[:, :2])
    torch.testing.assert_close(mg.batched_jvp(y, v, u[:, :2]), expected)


def test_masked() -> None:
    values = torch.tensor([[1.0, nan, 3.0], [inf, 2.0, 5.0]], dtype=D, requires_grad=True)
    x = mg.masked(values, on([1, 0, 1], [0, 1, 1]))
    y = x * x
    garbage = torch.tensor([[1.0, nan, 2.0], [inf, 1.0, 3.0]], dtype=D)
    with torch.autograd.set_detect_anomaly(True):
        assert_entries(mg.batched_vjp(y, x, garbage), [[2.0, None, 12.0], [None, 4.0, 30.0]])
        assert_entries(mg.batched_jvp(y, x, garbage), [[2.0, None, 12.0], [None, 4.0, 30.0]])
        marked = mg.masked(garbage, x.mask)
        assert_entries(mg.batched_vjp(y, x, marked), [[2.0, None, 12.0], [None, 4.0, 30.0]])
        assert_entries(mg.batched_jvp(y.sum(1), x, marked), [14.0, 34.0])


def test_unused_inputs() -> None:
    x, other = torch.ones(2, 3, requires_grad=True), torch.ones(2, 1, requires_grad=True)
    y = x**2
    with pytest.raises(ValueError, match=r"inputs\[1\] is not part of the graph"):
        mg.batched_vjp(y, (x, other), torch.ones(2, 3))
    assert mg.batched_vjp(y, (x, other), torch.ones(2, 3), allow_unused=True)[1] is None
    zeros = mg.batched_vjp(y, (x, other), torch.ones(2, 5, 3), materialize_grads=True)[1]
    assert zeros.shape == (2, 5, 1)
    with pytest.raises(ValueError, match=r"inputs\[1\] is not part of the graph"):
        mg.batched_jvp(y, (x, other), (torch.ones(2, 3), torch.ones(2, 1)))


@pytest.mark.parametrize(
    ("vectors", "kind", "message"),
    [
        (torch.ones(2, 4), ValueError, r"vectors must have shape \(B, \*N, 3\) with B = 2"),
        (torch.ones(3, 3), ValueError, "vectors must have shape"),
        (torch.ones(3), ValueError, "vectors must have shape"),
        ([torch.ones(2, 3)], ValueError, "vectors must be nested as outputs are"),
        (2.0, TypeError, "vectors must be tensors, found float"),
    ],
)
def test_vectors_that_do_not_fit(vectors: Any, kind: type[Exception], message: str) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(kind, match=message):
        mg.batched_vjp(x**2, x, vectors)


def test_the_same_number_of_vectors_everywhere() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(ValueError, match="the same N everywhere"):
        mg.batched_vjp((x**2, x**3), x, (torch.ones(2, 4, 3), torch.ones(2, 5, 3)))
