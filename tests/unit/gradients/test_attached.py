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


def masked() -> mg.MaskedTensor:
    return mg.masked(torch.where(MASK, NUMBERS, nan), MASK)


KINDS: dict[str, Callable[[], Any]] = {
    "Boolean": masked,
    "rows": lambda: masked().to_sparse(1),
    "CSR tensor": lambda: masked().to_sparse_csr().to_sparse_tensor(),
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
    for order in (2.0, inf, -inf, -1.0, 0.0, 0.5):  # missing gradients count as 0
        expected = torch.linalg.vector_norm(NUMBERS, order)
        assert torch.equal(torch.linalg.vector_norm(p.grad, order), expected)
        assert torch.equal(torch.linalg.vector_norm(p.grad, order, dim=0), expected[None])
    assert torch.nn.utils.clip_grad_norm_([q, p], 13.0) == 130
    torch.testing.assert_close(moved(p), NUMBERS / 10)
    p = parameter(kind)
    torch.nn.utils.clip_grad_value_([p, q], 35.0)
    assert moved(p).flatten().tolist() == [30.0, 0.0, -35.0, 35.0]


@kinds
@pytest.mark.parametrize("bad", [False, True])
def test_the_scaler_of_torch(kind: str, bad: bool) -> None:
    p, q = parameter(kind), nn.Parameter(torch.zeros(2))
    q.grad = torch.full((2,), inf if bad else 8.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    scaler.step(mg.optim.SGD([p, q], lr=1.0))
    scaler.update()
    assert scaler.get_scale() == (4.0 if bad else 8.0)
    torch.testing.assert_close(-p.detach(), NUMBERS * 0 if bad else NUMBERS / 8)


@pytest.mark.parametrize("build", [torch.optim.AdamW, torch.optim.LBFGS])
def test_steps_of_torch_are_refused_before_anything_moves(build: Any) -> None:
    p, q = nn.Parameter(torch.ones(3)), parameter("rows")
    p.grad = torch.ones(3)
    optimizer = build([p, q])
    with pytest.raises(
        RuntimeError, match=r"torch\.optim\.\w+ would treat .*mg\.optim.*param\.grad\.to_dense\(\)"
    ):
        optimizer.step(lambda: torch.ones(()))
    assert p.tolist() == [1.0] * 3
    q.grad = q.grad.to_dense()  # type: ignore[union-attr]  # the remedy
    optimizer.step(lambda: torch.ones(()))
    assert p[0] != 1


@kinds
def test_properties_reductions_and_copies(kind: str) -> None:
    gradient = parameter(kind).grad
    assert isinstance(gradient, MaskedGradient)
    assert torch.isfinite(gradient).all()
    assert torch.equal(gradient.abs(), NUMBERS.abs())
    assert gradient.sum() == NUMBERS.sum()
    for again in (copy.deepcopy(gradient), pickle.loads(pickle.dumps(gradient)), gradient.clone()):
        again.mul_(0.5)
        assert torch.equal(again.to_dense(), NUMBERS / 2)
    assert torch.equal(gradient.detach().to_dense(), NUMBERS)
    assert repr(gradient).startswith("MaskedGradient(")
    param = parameter(kind)
    for call in (
        (param * 2).sum().backward,
        lambda: gradient + 1,
        gradient.std,
        lambda: gradient @ gradient.T,
    ):
        with pytest.raises(RuntimeError, match=r"is masked .* param\.grad\.to_dense\(\)"):
            call()


@kinds
def test_models_forget_it_and_are_converted_with_it(kind: str) -> None:
    for to_none in (True, False):
        model = nn.ParameterList([parameter(kind)])
        model.zero_grad(set_to_none=to_none)
        assert not moved(model[0]).any()
    model = nn.ParameterList([parameter(kind)]).double()
    assert model[0].grad.dtype == torch.float64 == model[0].grad.to_dense().dtype
    assert torch.equal(moved(model[0]), NUMBERS.double())
    assert model.to("meta")[0].grad.device.type == "meta"


def test_memory_that_it_has_not_is_not_handed_out() -> None:
    model = nn.ParameterList([parameter("rows")]).share_memory()
    assert torch.equal(model[0].grad.to_dense(), NUMBERS)
    for call in (model[0].grad.__dlpack__, lambda: torch.from_dlpack(model[0].grad)):
        with pytest.raises((BufferError, RuntimeError), match=r"would treat .* param\.grad\.to_dense\(\)"):
            call()
    with pytest.raises(RuntimeError):
        model[0].grad.numpy()
