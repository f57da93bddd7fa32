"""A masked gradient in ``.grad``: PyTorch's tools are right or refuse, nothing is silent."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad.gradients.attached import MaskedGradient
from tests.poison import inf, nan

MASK = torch.tensor([[True], [False], [True], [True]])
NUMBERS = torch.tensor([[30.0], [0.0], [-40.0], [120.0]])


def masked(garbage: float) -> mg.MaskedTensor:
    return mg.masked(torch.where(MASK, NUMBERS, garbage), MASK)


KINDS: dict[str, Callable[[], Any]] = {
    "Boolean": lambda: masked(nan),
    "Boolean, inf": lambda: masked(inf),
    "COO": lambda: masked(nan).to_sparse(),
    "rows": lambda: masked(nan).to_sparse(1),
    "CSR": lambda: masked(nan).to_sparse_csr(),
    "CSR tensor": lambda: masked(nan).to_sparse_csr().to_sparse_tensor(),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def parameter(kind: str) -> nn.Parameter:
    p = nn.Parameter(torch.zeros(4, 1))
    mg.attach_gradient(p, KINDS[kind]())
    return p


def moved(p: Tensor) -> Tensor:
    """What a step of gradient descent does; the row without a gradient stays, bit for bit."""
    mg.optim.SGD([p], lr=1.0).step()
    assert p[1, 0] == 0
    return -p.detach()


@kinds
def test_norms_and_clipping_of_torch(kind: str) -> None:
    p, q = parameter(kind), nn.Parameter(torch.zeros(2))
    q.grad = torch.zeros(2)
    assert torch.nn.utils.get_total_norm([p.grad]) == 130  # type: ignore[list-item]
    assert p.grad.norm() == 130  # type: ignore[union-attr]
    assert torch.nn.utils.clip_grad_norm_([q, p], 13.0) == 130
    torch.testing.assert_close(moved(p), NUMBERS / 10)
    p = parameter(kind)
    torch.nn.utils.clip_grad_value_([p, q], 35.0)
    assert moved(p).flatten().tolist() == [30.0, 0.0, -35.0, 35.0]
    p = parameter(kind)
    assert mg.clip_grad_norm_([p], 13.0) == 130
    torch.testing.assert_close(moved(p), NUMBERS / 10)


@kinds
@pytest.mark.parametrize("bad", [False, True])
def test_the_scaler_of_torch(kind: str, bad: bool) -> None:
    p, q = parameter(kind), nn.Parameter(torch.zeros(2))
    q.grad = torch.full((2,), inf if bad else 8.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = mg.optim.SGD([p, q], lr=1.0)
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == (4.0 if bad else 8.0)
    torch.testing.assert_close(-p.detach(), NUMBERS * 0 if bad else NUMBERS / 8)


@kinds
@pytest.mark.parametrize("build", [torch.optim.AdamW, torch.optim.SGD, torch.optim.LBFGS])
def test_steps_of_torch_are_refused_before_anything_moves(build: Any, kind: str) -> None:
    p, q = nn.Parameter(torch.ones(3)), parameter(kind)
    p.grad = torch.ones(3)
    optimizer = build([p, q])
    with pytest.raises(
        RuntimeError, match=r"torch\.optim\.\w+ would treat .*mg\.optim.*param\.grad\.to_dense\(\)"
    ):
        optimizer.step(lambda: torch.ones(()))
    assert p.tolist() == [1.0] * 3
    assert build is not torch.optim.AdamW or not optimizer.state
    q.grad = q.grad.to_dense()  # type: ignore[union-attr]  # the remedy
    assert torch.equal(q.grad, NUMBERS)
    optimizer.step(lambda: torch.ones(()))
    assert p[0] != 1


@kinds
def test_backward_passes_do_not_add_to_it(kind: str) -> None:
    p = parameter(kind)
    with pytest.raises(RuntimeError, match="is masked"):
        (p * 2).sum().backward()
    p.grad = p.grad.to_dense()  # type: ignore[union-attr]
    (p * 2).sum().backward()
    assert torch.equal(p.grad, NUMBERS + 2)


@kinds
def test_properties_reductions_and_copies(kind: str) -> None:
    p = parameter(kind)
    gradient = p.grad
    assert isinstance(gradient, MaskedGradient)
    assert gradient.shape == p.shape
    assert torch.isfinite(gradient).all()
    assert not torch.isnan(gradient).any()
    assert torch.equal(gradient.abs(), NUMBERS.abs())
    assert gradient.sum() == NUMBERS.sum()
    assert torch.equal(torch.linalg.vector_norm(gradient, dim=0), torch.tensor([130.0]))
    assert torch.equal(gradient.detach().to_dense(), NUMBERS)
    for again in (copy.deepcopy(gradient), pickle.loads(pickle.dumps(gradient))):
        again.mul_(0.5)
        assert torch.equal(again.to_dense(), NUMBERS / 2)
    assert torch.equal(gradient.to_dense(), NUMBERS)
    assert repr(gradient).startswith("MaskedGradient(")
    for call in (
        lambda: gradient + 1,
        lambda: gradient.add_(1),
        gradient.std,
        lambda: gradient @ gradient.T,
    ):
        with pytest.raises(RuntimeError, match=r"is masked .* param\.grad\.to_dense\(\)"):
            call()


@pytest.mark.parametrize("order", [2.0, inf, -inf, -1.0, 0.0, 0.5, 1.0])
def test_norms_of_any_order_count_missing_gradients_as_0(order: float) -> None:
    expected = torch.linalg.vector_norm(NUMBERS, order, keepdim=True)
    for kind in KINDS:
        gradient = parameter(kind).grad
        assert gradient is not None
        assert torch.equal(torch.linalg.vector_norm(gradient, order, keepdim=True), expected), kind
    empty = nn.Parameter(torch.zeros(4, 1))
    mg.attach_gradient(empty, mg.masked(torch.full((4, 1), nan), MASK & ~MASK).to_sparse_csr())
    assert torch.linalg.vector_norm(empty.grad, order) == 0  # type: ignore[arg-type]


@kinds
def test_models_forget_it(kind: str) -> None:
    for to_none in (True, False):
        model = nn.ParameterList([parameter(kind)])
        model.zero_grad(set_to_none=to_none)
        assert not moved(model[0]).any()


@kinds
def test_models_are_converted_with_it(kind: str) -> None:
    layer = nn.Module()
    layer.p = parameter(kind)
    before = layer.p.grad
    layer.double()
    assert layer.p.grad is not None
    assert layer.p.grad.dtype == torch.float64 == layer.p.grad.to_dense().dtype
    assert torch.equal(layer.p.grad.to_dense(), NUMBERS.double())
    assert torch.equal(moved(layer.p), NUMBERS.double())
    copied = parameter(kind).grad.clone()  # type: ignore[union-attr]
    copied.zero_()
    assert torch.equal(parameter(kind).grad.to_dense(), NUMBERS)  # type: ignore[union-attr]
    assert before is not None
    assert layer.to("meta").p.grad.device.type == "meta"


def test_memory_that_it_has_not_is_not_handed_out() -> None:
    layer = nn.Module()
    layer.p = parameter("rows")
    layer.share_memory()
    assert layer.p.is_shared()
    assert torch.equal(layer.p.grad.to_dense(), NUMBERS)
    for call in (layer.p.grad.__dlpack__, lambda: torch.from_dlpack(layer.p.grad)):
        with pytest.raises((BufferError, RuntimeError), match=r"would treat .* param\.grad\.to_dense\(\)"):
            call()
    with pytest.raises(RuntimeError):
        layer.p.grad.numpy()
