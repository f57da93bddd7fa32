"""Bringing rows up to date: on demand, and whenever an optimizer is saved, loaded, copied or dropped."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import maskgrad as mg
from maskgrad import optim
from maskgrad.optim.lazy import rows as lazy_module
from maskgrad.optim.lazy.rows import lazy_rows_of
from tests.laws.storage.test_cost import LIMIT, Bounded
from tests.unit.optim.beside import assert_close, assert_states_close, beside_dense, sparse
from tests.unit.optim.optimizers import CASES, Case


def behind(*params: Tensor) -> optim.SGD:
    """An optimizer of ones; after a step the first is 0.5, and so are the others once they are up to date."""
    optimizer = optim.SGD(params, lr=1.0, weight_decay=0.5, unspecified="zero")
    for p in params:
        p.grad = sparse(torch.tensor([0]), torch.zeros(1, 1), p)
    optimizer.step()
    return optimizer


def test_changing_to_skip_settles_what_is_owed() -> None:
    p = nn.Parameter(torch.ones(3, 1))
    optimizer = behind(p)
    optimizer.param_groups[0]["unspecified"] = "skip"
    optimizer.step()
    assert p.detach().view(-1).tolist() == [0.25, 0.5, 0.5]


def test_only_tensors_that_it_is_asked_for_and_that_it_trains_are_brought_up_to_date() -> None:
    p, q = nn.Parameter(torch.ones(2, 1)), nn.Parameter(torch.ones(2, 1))
    optimizer = behind(p, q)
    optimizer.flush([p])
    assert (p.tolist(), q.tolist()) == ([[0.5], [0.5]], [[0.5], [1.0]])
    optim.flush(nn.ParameterList([q]))
    assert q.tolist() == [[0.5], [0.5]]
    with pytest.raises(ValueError, match="1 tensors that this optimizer does not train"):
        optimizer.flush([q, nn.Parameter(torch.ones(2))])
    with pytest.raises(TypeError, match="got a str"):
        optim.flush(["weight"])  # type: ignore[list-item]


@pytest.mark.parametrize("table", [nn.Embedding, mg.nn.Embedding])
def test_what_is_loaded_misses_no_step_of_before(table: Any) -> None:
    x, y = table(4, 1, sparse=True, dtype=torch.float64), nn.Embedding(4, 1, dtype=torch.float64)
    y.load_state_dict(x.state_dict())
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.5}
    lazy = optim.SGD(x.parameters(), unspecified="zero", **options)
    eager = torch.optim.SGD(y.parameters(), **options)
    for number, row in enumerate((0, 1, 0, 0, 1)):
        if number == 3:
            x.load_state_dict({"weight": torch.full((4, 1), 3.0, dtype=torch.float64)})
            y.load_state_dict({"weight": torch.full((4, 1), 3.0, dtype=torch.float64)})
        for model, optimizer in ((x, lazy), (y, eager)):
            optimizer.zero_grad()
            model(torch.tensor([row])).sum().backward()
            optimizer.step()
    lazy.flush()
    torch.testing.assert_close(x.weight, y.weight)


def test_states_are_loaded_after_pending_updates() -> None:
    p, q = (nn.Parameter(torch.ones(3, 1, dtype=torch.float64)) for _ in range(2))
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9}
    lazy, eager = optim.SGD([p], unspecified="zero", **options), torch.optim.SGD([q], **options)
    kept: list[Any] = []
    for number, row in enumerate((0, 1, 0, 2)):
        p.grad = sparse(torch.tensor([row]), torch.ones(1, 1, dtype=p.dtype), p)
        q.grad = p.grad.to_dense()
        for optimizer in (lazy, eager):
            optimizer.step()
            if number == 0:
                kept.append(copy.deepcopy(optimizer.state_dict()))
            elif number == 2:
                optimizer.load_state_dict(kept.pop(0))
    lazy.flush()
    torch.testing.assert_close(p, q)


def test_momentum_may_come_and_go_between_steps() -> None:
    p, q = (nn.Parameter(torch.ones(3, 1, dtype=torch.float64)) for _ in range(2))
    lazy = optim.SGD([p], lr=0.1, momentum=0.9, unspecified="zero")
    eager = torch.optim.SGD([q], lr=0.1, momentum=0.9)
    for row, momentum in ((0, 0.9), (1, 0.9), (1, 0.0), (0, 0.0), (2, 0.5), (0, 0.5)):
        lazy.param_groups[0]["momentum"] = eager.param_groups[0]["momentum"] = momentum
        p.grad = sparse(torch.tensor([row]), torch.ones(1, 1, dtype=p.dtype), p)
        q.grad = p.grad.to_dense()
        lazy.step()
        eager.step()
    lazy.flush()
    torch.testing.assert_close(p, q)


def test_pickles_and_copies_of_optimizers_are_up_to_date() -> None:
    p, q, lazy, eager = beside_dense(optim.AdamW, torch.optim.AdamW, {"lr": 0.01}, steps=50)
    for clone in (copy.deepcopy(lazy), pickle.loads(pickle.dumps(lazy))):
        (other,) = clone.param_groups[0]["params"]
        assert_close(other, q, 1e-10)
        assert_states_close(clone, other, eager, q, 1e-10)
        other.grad = sparse(torch.tensor([1]), torch.ones(1, 3), other)
        clone.step()
    assert_close(p, q, 1e-10)
    # a parameter that owes nothing is saved without the optimizer's states
    plain, with_history = io.BytesIO(), io.BytesIO()
    torch.save(nn.Parameter(p.detach()), plain)
    torch.save(p, with_history)
    assert len(with_history.getvalue()) < len(plain.getvalue()) + 1000


@pytest.mark.parametrize("kind", [nn.Parameter, lambda t: t.requires_grad_()])
def test_a_pickled_parameter_owes_nothing(kind: Callable[[Tensor], Tensor]) -> None:
    """A parameter is brought up to date first; a plain leaf takes along what it owes."""
    p = kind(torch.ones(3, 1))
    optimizer = behind(p)
    other = pickle.loads(pickle.dumps(p))
    if isinstance(p, nn.Parameter):
        assert not vars(other)
    else:
        optim.flush(other)
    assert other.detach().view(-1).tolist() == [0.5, 0.5, 0.5]
    optimizer.flush()
    assert torch.equal(p, other)


def test_loading_a_model_and_then_its_optimizer_drops_pending_updates() -> None:
    model = nn.Embedding(3, 1, _weight=torch.ones(3, 1))
    before = copy.deepcopy(model.state_dict())
    optimizer = behind(model.weight)
    states = copy.deepcopy(optimizer.state_dict())
    optimizer.step()
    model.load_state_dict(before)
    optimizer.load_state_dict(states)
    optimizer.flush()
    assert model.weight.detach().view(-1).tolist() == [1.0, 1.0, 1.0]


def test_the_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_module, "_MOST_STEPS", 16)
    lengths: list[int] = []

    def watch(step: int, p: nn.Parameter, *_: Any) -> None:
        lengths.append(len(lazy_rows_of(p) or ()))

    p, q, lazy, _ = beside_dense(optim.AdamW, torch.optim.AdamW, {"lr": 0.01}, steps=100, meanwhile=watch)
    lazy.flush()
    assert_close(p, q, 1e-10)
    assert max(lengths) == 15


class Created(Bounded):
    """Views, and what is written in place, may be as large as a table."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view or func._schema.is_mutable:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


@pytest.mark.parametrize("case", CASES.values(), ids=str)
def test_a_step_creates_and_writes_nothing_in_proportion_to_the_table(case: Case) -> None:
    p = nn.Parameter(torch.ones(LIMIT + 1, 1))
    optimizer = case.mine([p], unspecified="zero")
    for step in range(8):
        p.grad = sparse(torch.tensor([step, 2, 2]), torch.ones(3, 1), p)
        others = p.detach()[100:].clone()
        # The first steps create states; RAdam's sixth is its first with a closed form, before which all are updated.
        is_usual = step > 1 and not (step == 5 and case.ours is optim.RAdam)
        with Created() if is_usual else nullcontext():
            optimizer.step()
        assert not is_usual or torch.equal(p.detach()[100:], others)
