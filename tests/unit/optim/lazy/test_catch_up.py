"""Bringing rows up to date: on demand, and whenever an optimizer is saved, loaded, copied or dropped."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from maskgrad import optim
from maskgrad.optim.lazy.rows import lazy_rows_of
from tests.unit.optim.beside import assert_close, assert_states_close, beside_dense, dense, sparse


def test_several_parameters_and_groups_go_their_own_ways() -> None:
    p, q = ([nn.Parameter(torch.ones(4, 2, dtype=torch.float64)) for _ in range(3)] for _ in range(2))
    lazy = optim.AdamW([{"params": p[:2], "unspecified": "zero"}, {"params": p[2:], "lr": 0.1}], lr=0.01)
    eager = torch.optim.AdamW(q[:2], lr=0.01)
    for step in range(12):
        for k in range(3):
            has = (step + k) % 3
            p[k].grad = sparse(torch.tensor([k]), torch.ones(1, 2), p[k]) if has else None
            q[k].grad = dense(torch.tensor([k]), torch.ones(1, 2).double(), q[k]) if has else None
        lazy.step()
        eager.step()
    lazy.flush(p[:1])
    assert lazy_rows_of(p[1]) is not None
    assert len(lazy_rows_of(p[1]) or ()) > 0
    lazy.flush()
    for k in range(2):
        assert_close(p[k], q[k], 1e-12)
    assert torch.equal(p[2].detach()[[0, 1, 3]], torch.ones(3, 2, dtype=torch.float64))  # "skip"


def test_changing_to_skip_settles_what_is_owed() -> None:
    p = nn.Parameter(torch.ones(3, 1))
    optimizer = optim.SGD([p], lr=1.0, weight_decay=0.5, unspecified="zero")
    p.grad = sparse(torch.tensor([0]), torch.zeros(1, 1), p)
    optimizer.step()
    optimizer.param_groups[0]["unspecified"] = "skip"
    optimizer.step()
    assert p.detach().view(-1).tolist() == [0.25, 0.5, 0.5]


def test_other_meanings_are_refused() -> None:
    p = nn.Parameter(torch.ones(2))
    with pytest.raises(
        ValueError,
        match=r"unspecified='none' is not available; use unspecified='skip'.*or unspecified='zero'",
    ):
        optim.SGD([p], unspecified="none")  # type: ignore[arg-type]
    optimizer = optim.SGD([p], unspecified="zero")
    with pytest.raises(ValueError, match="1 tensors that this optimizer does not train"):
        optimizer.flush([p, nn.Parameter(torch.ones(2))])
    with pytest.raises(TypeError, match="got a str"):
        optim.flush(["weight"])  # type: ignore[list-item]


def test_pending_updates_outlive_the_optimizer() -> None:
    model = nn.Embedding(3, 1, sparse=True)
    nn.init.ones_(model.weight)

    def train() -> weakref.ref[Any]:
        optimizer = optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5, unspecified="zero")
        (model(torch.tensor([0])) * 0).sum().backward()
        optimizer.step()
        return weakref.ref(optimizer)

    reference = train()
    gc.collect()
    assert reference() is None
    optim.flush(model)
    assert model.weight.detach().view(-1).tolist() == [0.5, 0.5, 0.5]


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


def test_loading_a_model_and_then_its_optimizer_drops_pending_updates() -> None:
    model = nn.Embedding(3, 1, sparse=True)
    nn.init.ones_(model.weight)
    optimizer = optim.SGD(model.parameters(), lr=1.0, weight_decay=0.5, unspecified="zero")
    checkpoint = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    (model(torch.tensor([0])) * 0).sum().backward()
    optimizer.step()
    model.load_state_dict(checkpoint[0])
    optimizer.load_state_dict(checkpoint[1])
    optimizer.flush()
    assert model.weight.detach().view(-1).tolist() == [1.0, 1.0, 1.0]
