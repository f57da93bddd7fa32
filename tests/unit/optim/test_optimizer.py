"""One suite for every optimizer: equal to torch.optim where torch.optim can follow, all or nothing where it cannot."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from maskgrad.masked_tensor import masked
from maskgrad.optim import SGD, Adagrad, attach_gradient, attached_gradient
from maskgrad.optim.optimizer import MaskedOptimizer
from tests.unit.optim.kinds import coo, every_kind

NAN = float("nan")
OPTIONS: dict[str, tuple[type[MaskedOptimizer], type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adagrad": (Adagrad, torch.optim.Adagrad, {"lr": 0.1}),
    "adagrad, all options": (
        Adagrad,
        torch.optim.Adagrad,
        {
            "lr": 0.1,
            "lr_decay": 0.1,
            "weight_decay": 0.1,
            "initial_accumulator_value": 0.5,
            "eps": 1e-3,
            "maximize": True,
        },
    ),
    "sgd": (SGD, torch.optim.SGD, {"lr": 0.1}),
    "sgd, momentum": (
        SGD,
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "maximize": True},
    ),
    "sgd, nesterov": (SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "sgd, dampening": (SGD, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
}
every_optimizer = pytest.mark.parametrize(("ours", "theirs", "options"), OPTIONS.values(), ids=OPTIONS.keys())


def bits(t: Tensor) -> Tensor:
    return t.detach().contiguous().view(torch.int32)


def snapshot(optimizer: torch.optim.Optimizer) -> list[Any]:
    params = [p.detach().clone() for group in optimizer.param_groups for p in group["params"]]
    return [params, copy.deepcopy(optimizer.state_dict())]


def assert_unchanged(optimizer: torch.optim.Optimizer, before: list[Any]) -> None:
    params, state = snapshot(optimizer)
    for now, then in zip(params, before[0], strict=True):
        assert torch.equal(bits(now), bits(then))
    assert state["state"].keys() == before[1]["state"].keys()
    for key, entry in state["state"].items():
        assert entry.keys() == before[1]["state"][key].keys()
        for name, value in entry.items():
            assert torch.equal(value, before[1]["state"][key][name]), name


@every_optimizer
def test_dense_gradients_give_what_torch_gives_for_20_steps(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    start = [torch.randn(4, 3), torch.randn(5), torch.randn(())]
    mine, reference = ([nn.Parameter(t.clone()) for t in start] for _ in range(2))
    a, b = ours(mine, **options), theirs(reference, **options)
    for _ in range(20):
        for p, q in zip(mine, reference, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        a.step()
        b.step()
    for p, q in zip(mine, reference, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


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
    torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


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
    start = options.get("initial_accumulator_value", 0)
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
            assert value.shape != p.shape or value.tolist() == [[start if key == "sum" else 0]] * 3


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "index too large": (
        coo([[0, 3]], torch.ones(2, 1), (3, 1)),
        IndexError,
        "index 3 of entry 1 is outside the size 3",
    ),
    "index negative": (coo([[-2, 0]], torch.ones(2, 1), (3, 1)), IndexError, "index -2 of entry 0"),
    "shape": (torch.ones(2, 1), ValueError, r"shape \(2, 1\), but the parameter has shape \(3, 1\)"),
    "device": (torch.ones(3, 1, device="meta"), ValueError, "is on meta"),
    "dtype": (torch.ones(3, 1, dtype=torch.int32), TypeError, "dtype torch.int32"),
    "complex": (torch.ones(3, 1, dtype=torch.complex64), TypeError, "dtype torch.complex64"),
}


@every_optimizer
@pytest.mark.parametrize(("bad", "error", "words"), BAD.values(), ids=BAD.keys())
def test_a_step_is_all_or_nothing(
    bad: Any,
    error: type[Exception],
    words: str,
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    good, spoiled = nn.Parameter(torch.ones(3, 1)), nn.Parameter(torch.ones(3, 1))
    optimizer = ours([{"params": [good]}, {"params": [spoiled], "lr": 0.2}], **options)
    for p in (good, spoiled):
        p.grad = torch.ones(3, 1)
    optimizer.step()
    spoiled.grad = None
    # Past the check of attach_gradient, as a gradient that was changed afterwards would be.
    spoiled._maskgrad_gradient = bad
    before = snapshot(optimizer)
    with pytest.raises(error, match=words) as refusal:
        optimizer.step()
    assert "parameter 0 of group 1" in str(refusal.value)
    assert_unchanged(optimizer, before)


@every_optimizer
def test_a_hyperparameter_spoiled_on_the_way_stops_the_step(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = ours([{"params": [p]}, {"params": [q]}], **options)
    p.grad = q.grad = torch.ones(3)
    for name, value in (("lr", NAN), ("lr", -1.0), ("weight_decay", float("inf")), ("differentiable", True)):
        before = snapshot(optimizer)
        kept = optimizer.param_groups[1][name]
        optimizer.param_groups[1][name] = value
        with pytest.raises(ValueError, match=name):
            optimizer.step()
        optimizer.param_groups[1][name] = kept
        assert_unchanged(optimizer, before)


@every_optimizer
def test_a_state_of_another_shape_stops_the_step(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    small, p = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    donor, optimizer = ours([small], **options), ours([p], **options)
    small.grad, p.grad = torch.ones(2), torch.ones(3)
    donor.step()
    if any(value.shape == small.shape for value in donor.state[small].values()):
        optimizer.load_state_dict(donor.state_dict())
        with pytest.raises(ValueError, match=r"of parameter 0 of group 0 has shape \(2,\)"):
            optimizer.step()
        assert p.tolist() == [1.0] * 3


@every_optimizer
def test_names_of_parameters_appear_in_errors(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    model = nn.Embedding(3, 1, sparse=True)
    optimizer = ours(model.named_parameters(), **options)
    model.weight.grad = coo([[7]], torch.ones(1, 1), (3, 1))
    with pytest.raises(IndexError, match=r"gradient of parameter 'weight', dimension 0: index 7 of entry 0"):
        optimizer.step()


@every_optimizer
def test_what_is_refused_at_construction(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p = [nn.Parameter(torch.ones(2))]
    refused: list[tuple[dict[str, Any], str]] = [
        ({"unspecified": "zero"}, "unspecified='zero' is not available yet; use unspecified='skip'"),
        ({"unspecified": "all"}, "unspecified='all' is not available; use"),
        ({"state": "row"}, "state='row' is not available yet; use state='full'"),
        ({"state": "half"}, "state='half' is not available; use"),
        ({"differentiable": True}, "differentiable=True is not available"),
        ({"lr": -0.1}, "lr must be at least 0, got -0.1"),
        ({"lr": NAN}, "lr must be finite, got nan"),
        ({"lr": torch.tensor([0.1, 0.2])}, "lr must be one number"),
        ({"weight_decay": -1}, "weight_decay must be at least 0, got -1"),
    ]
    for bad, words in refused:
        with pytest.raises(ValueError, match=words):
            ours(p, **{**options, **bad})
    with pytest.raises(TypeError, match="lr must be a number or a tensor with one element, got 'fast'"):
        ours(p, **{**options, "lr": "fast"})
    with pytest.raises(TypeError, match="parameter 0 of group 0 is itself a sparse tensor"):
        ours([torch.eye(2).to_sparse().requires_grad_()], **options)
    with pytest.raises(TypeError, match=r"parameter 0 of group 0 has dtype torch\.int64"):
        ours([torch.ones(2, dtype=torch.int64)], **options)


@every_optimizer
def test_a_refused_group_is_not_added(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p, q = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = ours([p], **options)
    with pytest.raises(ValueError, match="lr must be at least 0"):
        optimizer.add_param_group({"params": [q], "lr": -1.0})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [q], "lr": 0.5})
    p.grad = q.grad = torch.ones(2)
    optimizer.step()
    assert p[0] != 1
    assert q[0] != 1


@every_optimizer
def test_the_machinery_of_torch_optim_works(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = ours([p], **{**options, "lr": torch.tensor(0.5), "foreach": True, "fused": False})
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
def test_a_parameter_with_two_gradients_is_refused(
    ours: Callable[..., MaskedOptimizer],
    theirs: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = ours([p], **options)
    attach_gradient(p, masked(torch.ones(2), torch.tensor([True, False])))
    p.grad = torch.ones(2)
    with pytest.raises(ValueError, match=r"parameter 0 of group 0 has an attached gradient and a \.grad"):
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
    assert all(v.dtype in (dtype, torch.bool) for k, v in optimizer.state[p].items() if k != "step")
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
