"""Rows of a parameter that are behind: bounded in memory, and touched only for the rows that a step needs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from maskgrad import optim
from maskgrad.optim.lazy import rows as lazy_module
from maskgrad.optim.lazy.rows import lazy_rows_of
from tests.unit.optim.beside import assert_close, beside_dense, sparse
from tests.unit.optim.optimizers import CASES, Case


@pytest.mark.parametrize("kind", [nn.Parameter, lambda t: t.requires_grad_()])
def test_a_pickled_parameter_owes_nothing(kind: Callable[[Tensor], Tensor]) -> None:
    """A parameter is brought up to date first; a plain leaf takes along what it owes."""
    p = kind(torch.ones(3, 1))
    optimizer = optim.SGD([p], lr=1.0, weight_decay=0.5, unspecified="zero")
    p.grad = sparse(torch.tensor([0]), torch.zeros(1, 1), p)
    optimizer.step()
    other = pickle.loads(pickle.dumps(p))
    if isinstance(p, nn.Parameter):
        assert not vars(other)
    else:
        optim.flush(other)
    assert other.detach().view(-1).tolist() == [0.5, 0.5, 0.5]
    optimizer.flush()
    assert torch.equal(p, other)


def test_the_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_module, "_MOST_STEPS", 16)
    longest = 0

    def watch(step: int, p: nn.Parameter, *_: Any) -> None:
        nonlocal longest
        longest = max(longest, len(lazy_rows_of(p) or ()))

    p, q, lazy, _ = beside_dense(optim.AdamW, torch.optim.AdamW, {"lr": 0.01}, steps=100, meanwhile=watch)
    lazy.flush()
    assert_close(p, q, 1e-10)
    assert longest == 15


class Largest(TorchDispatchMode):
    """The largest number of elements that an operation created."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        storages = {
            x.untyped_storage().data_ptr()
            for x in tree_leaves((args, kwargs))
            if isinstance(x, Tensor) and x.layout is torch.strided
        }
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if (
                isinstance(x, Tensor)
                and x.layout is torch.strided
                and x.untyped_storage().data_ptr() not in storages
            ):
                self.numel = max(self.numel, x.numel())
        return result


@pytest.mark.parametrize("case", CASES.values(), ids=str)
def test_a_step_creates_and_writes_nothing_in_proportion_to_the_table(case: Case) -> None:
    p = nn.Parameter(torch.ones(5000, 4))
    optimizer = case.mine([p], unspecified="zero")
    for step in range(8):
        p.grad = sparse(torch.tensor([step, 2, 2]), torch.ones(3, 4), p)
        others = p.detach()[100:].clone()
        # RAdam's sixth step is the first with a closed form, before which all rows are updated.
        is_another = step == 5 and case.ours is optim.RAdam
        if step < 2 or is_another:  # the first steps create state
            optimizer.step()
        else:
            with Largest() as largest:
                optimizer.step()
            assert 0 < largest.numel <= 64
        assert is_another or torch.equal(p.detach()[100:], others)
