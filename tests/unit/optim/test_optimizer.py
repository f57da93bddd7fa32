"""One suite for every optimizer: equal to torch.optim where torch.optim can follow, at home in its machinery."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskgrad import attach_gradient, optim
from maskgrad.masked_tensor import masked
from maskgrad.optim import Adagrad, attached_gradient
from maskgrad.optim.optimizer import MaskedOptimizer
from tests.unit.optim.kinds import coo, every_kind
from tests.unit.optim.optimizers import NAN, PAPERS, accepts, bits, every_optimizer, same_way


@every_optimizer
def test_dense_gradients_give_what_torch_gives_for_20_steps(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    start = [torch.randn(4, 3), torch.randn(5), torch.randn(())]
    mine, reference = ([nn.Parameter(t.clone()) for t in start] for _ in range(2))
    a, b = ours(mine, **options), theirs(reference, **options, **same_way(theirs))
    for _ in range(20):
        for p, q in zip(mine, reference, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        a.step()
        b.step()
    for p, q in zip(mine, reference, strict=True):
        if theirs in PAPERS.values():
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(bits(p), bits(q))


@every_optimizer
@pytest.mark.parametrize("ours_first", [True, False])
def test_state_dicts_are_exchanged_in_mid_run(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
    ours_first: bool,
) -> None:
    start, gradients = torch.randn(4, 3), torch.randn(20, 4, 3)
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    straight = theirs([q], **options)
    first, second = (ours, theirs) if ours_first else (theirs, ours)
    optimizer = first([p], **options)
    for step, gradient in enumerate(gradients):
        if step in (7, 13):
            handed_over = io.BytesIO()
            torch.save(optimizer.state_dict(), handed_over)
            handed_over.seek(0)
            optimizer = (second if step == 7 else first)([p], **{**options, "lr": 0.7})
            optimizer.load_state_dict(torch.load(handed_over))
        p.grad, q.grad = gradient.clone(), gradient.clone()
        optimizer.step()
        straight.step()
    torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@every_optimizer
def test_kinds_of_gradient_take_turns_on_one_state(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    # Fully specified gradients of every kind are the dense gradient.
    start = torch.randn(4, 6)
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    a, b = ours([p], **options), theirs([q], **options)
    full = torch.ones(4, 6, dtype=torch.bool)
    kinds: list[Callable[[Tensor], Any]] = [
        lambda d: d,
        lambda d: d.to_sparse(),
        lambda d: d.to_sparse(1),
        lambda d: d.to_sparse_csr(),
        lambda d: d.to_sparse_bsc((2, 3)),
        lambda d: masked(d, full),
    ]
    for order in (kinds, kinds[::-1]):
        for kind in order:
            gradient = torch.randn(4, 6)
            a.zero_grad()
            attach_gradient(p, kind(gradient))
            q.grad = gradient
            a.step()
            b.step()
    torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@every_optimizer
@every_kind
def test_unspecified_entries_keep_parameter_and_state_bit_for_bit(
    kind: Callable[[Tensor], Any],
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p = nn.Parameter(torch.tensor([[NAN, -0.0, 1, 2], [3, 4, 1e38, float("inf")]]))
    optimizer = ours([p], **options)
    attach_gradient(p, torch.ones(2, 4))
    optimizer.step()
    before = {"p": p.detach().clone()}
    before |= {key: value.clone() for key, value in optimizer.state[p].items() if value.shape == p.shape}
    attach_gradient(p, kind(torch.tensor([[0.0, 0, 3, 4], [5, 6, 0, 0]])))
    optimizer.step()
    for key, then in before.items():
        now = p if key == "p" else optimizer.state[p][key]
        assert torch.equal(bits(now)[0, :2], bits(then)[0, :2]), key
        assert torch.equal(bits(now)[1, 2:], bits(then)[1, 2:]), key
    assert p[0, 2] != before["p"][0, 2]


@every_optimizer
def test_a_gradient_without_entries_changes_nothing(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p = nn.Parameter(torch.ones(3, 1))
    optimizer = ours([p], **options)
    start = {"sum": options.get("initial_accumulator_value", 0), "step_size": options["lr"], "ax": 1.0}
    empty: list[Any] = [
        coo(torch.empty(1, 0, dtype=torch.int64), torch.empty(0, 1), (3, 1)),
        coo(torch.empty(2, 0, dtype=torch.int64), torch.empty(0), (3, 1)),
        torch.zeros(3, 1).to_sparse_csr(),
        masked(torch.full((3, 1), NAN), torch.zeros(3, 1, dtype=torch.bool)),
    ]
    for gradient in empty:
        attach_gradient(p, gradient)
        optimizer.step()
        assert p.tolist() == [[1.0]] * 3
        for key, value in optimizer.state[p].items():
            assert value.shape != p.shape or torch.equal(value, torch.full((3, 1), start.get(key, 0.0)))


@every_optimizer
def test_the_machinery_of_torch_optim_works(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p = nn.Parameter(torch.ones(2))
    accepted = {"foreach": True, "fused": False, "capturable": False, "differentiable": False}
    accepted = {name: value for name, value in accepted.items() if accepts(ours, name)}
    optimizer = ours([p], **{**options, "lr": torch.tensor(0.5), **accepted})
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    scheduler.step()
    assert seen == ["before", "after"]
    assert optimizer.param_groups[0]["lr"].item() == 0.25
    assert repr(optimizer).startswith(ours.__name__)
    clone = copy.deepcopy(optimizer)
    assert clone.param_groups[0]["params"][0] is not p


@every_optimizer
def test_zero_grad_removes_attached_gradients(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = ours([p], **options)
    for set_to_none in (True, False):
        attach_gradient(p, masked(torch.ones(2), torch.tensor([True, False])))
        optimizer.zero_grad(set_to_none=set_to_none)
        assert attached_gradient(p) is None
    optimizer.step()
    assert p.tolist() == [1.0, 1.0]


@every_optimizer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes_are_kept(
    dtype: torch.dtype,
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p = nn.Parameter(torch.ones(4, 2, dtype=dtype))
    optimizer = ours([p], **options)
    for gradient in (
        torch.ones(4, 2),
        torch.ones(4, 2, dtype=torch.float16),
        coo([[1, 1]], torch.ones(2, 2), (4, 2)),
    ):
        attach_gradient(p, gradient)
        optimizer.step()
    assert p.dtype == dtype
    assert all(v.dtype in (dtype, torch.bool) for v in optimizer.state[p].values() if v.shape == p.shape)
    assert torch.equal(p[0], p[2])
    assert not torch.equal(p[0], p[1])


def test_the_interface_cannot_be_built() -> None:
    with pytest.raises(TypeError, match="abstract"):
        MaskedOptimizer([nn.Parameter(torch.ones(1))], {})  # type: ignore[abstract]


def test_tied_weights_give_a_dense_gradient() -> None:
    embedding, head = nn.Embedding(5, 2, sparse=True), nn.Linear(2, 5, bias=False)
    head.weight = embedding.weight
    old = embedding.weight.detach().clone()
    head(embedding(torch.tensor([1]))).sum().backward()
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.layout is torch.strided
    Adagrad([embedding.weight], lr=0.1).step()
    torch.testing.assert_close(embedding.weight - old, -0.1 * embedding.weight.grad.sign())


def test_another_state_is_noticed() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = optim.SGD([p], lr=0.1, momentum=0.9)
    optimizer.step()  # nothing to do, but the group has been looked at
    optimizer.state = type(optimizer.state)(dict)
    p.grad = torch.ones(2)
    optimizer.step()
    assert optimizer.state[p]["momentum_buffer"].tolist() == [1, 1]


@pytest.mark.parametrize("option", ["lr", "betas"])
def test_options_in_tensors_may_change_in_place(option: str) -> None:
    p, q = (nn.Parameter(torch.ones(2)) for _ in range(2))
    values = {"lr": torch.tensor(0.1), "betas": (torch.tensor(0.9), 0.99)}
    ours, theirs = optim.Adam([p], **values), optim.Adam([q], lr=0.1, betas=(0.9, 0.99))  # type: ignore[arg-type]
    for step in range(3):
        p.grad = q.grad = torch.tensor([1.0, -step])
        ours.step()
        theirs.step()
        tensor, group = values[option], theirs.param_groups[0]
        if option == "lr":
            tensor.mul_(0.5)  # type: ignore[attr-defined]
            group["lr"] *= 0.5
        else:
            tensor[0].mul_(0.5)  # type: ignore[index]
            group["betas"] = (group["betas"][0] * 0.5, 0.99)
    torch.testing.assert_close(p, q)


def test_a_list_of_options_may_change_in_place() -> None:
    p, q = (nn.Parameter(torch.ones(4, 2)) for _ in range(2))
    ours, theirs = optim.Adam([p], lr=0.1, betas=[0.9, 0.99]), optim.Adam([q], lr=0.1, betas=(0.9, 0.99))  # type: ignore[arg-type]
    for step in range(6):
        p.grad = coo([[1, 3]], torch.full((2, 2), step + 1.0), (4, 2))
        q.grad = p.grad.clone()
        ours.step()
        theirs.step()
        if step == 3:  # long after everything was prepared
            ours.param_groups[0]["betas"][0] = 0.5
            theirs.param_groups[0]["betas"] = (0.5, 0.99)
    assert torch.equal(p, q)
