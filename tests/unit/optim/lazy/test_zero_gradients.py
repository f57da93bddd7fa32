"""A missing gradient counts as zero: numbers at which a closed form changes, numbers that change, long gaps.

What all optimizers have in common is in ``suite/behind.py``.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from maskgrad import optim, train_only
from maskgrad.optim.lazy.zero_gradients import RowsReadLate
from tests.effort import examples
from tests.unit.optim.beside import assert_close, assert_states_close, beside_dense, dense, sparse
from tests.unit.optim.optimizers import CASES, DECLARED, Case
from tests.unit.optim.suite.behind import Behind

# Numbers that the shared list does not have, and at which a closed form changes.
MORE = {
    "sgd, decay": ("SGD", {"lr": 0.1, "weight_decay": 0.1}),
    "sgd, dampening and decay": ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "sgd, nesterov and decay": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "sgd, overshooting decay": ("SGD", {"lr": 0.5, "weight_decay": 3.0}),
    "adam, large eps": ("Adam", {"lr": 0.01, "eps": 0.3}),
    "adam, no second moment": ("Adam", {"lr": 0.01, "betas": (0.5, 0.0)}),
    "adam, no first moment": ("Adam", {"lr": 0.01, "betas": (0.0, 0.99)}),
    "adam, amsgrad": ("Adam", {"lr": 0.01, "amsgrad": True}),
    "adamw, amsgrad": ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    "adamw, decay of everything": ("AdamW", {"lr": 0.1, "weight_decay": 10.0}),
    "adamw, overshooting decay": ("AdamW", {"lr": 0.1, "weight_decay": 12.0}),
    "adamw, no learning rate": ("AdamW", {"lr": 0.0}),
    "rmsprop, momentum without decay": ("RMSprop", {"lr": 0.01, "momentum": 0.9}),
    "rmsprop, centered momentum": ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True}),
    "lion, decay": ("Lion", {"lr": 0.01, "weight_decay": 0.1}),
}
DECLARED_BY_NAME = {one.ours.__name__: one for one in DECLARED}
MORE_CASES = {name: Case(DECLARED_BY_NAME[kind], name, options) for name, (kind, options) in MORE.items()}


@pytest.mark.parametrize("case", MORE_CASES.values(), ids=MORE_CASES)
def test_where_a_closed_form_changes(case: Case) -> None:
    Behind().test_it_equals_the_dense_optimizer_after_gaps(case)
    Behind().test_in_float32_it_is_as_exact_as_the_dense_optimizer(case)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_late_read_names_the_table(is_named: bool) -> None:
    net = torch.nn.ModuleDict({f"table_{n}": torch.nn.Embedding(4, 2) for n in range(20)})
    params = net.named_parameters() if is_named else net.parameters()
    optimizer = optim.SGD(params, lr=1.0, weight_decay=0.5, unspecified="zero")
    weight = net["table_7"].weight
    name = "parameter 'table_7.weight'" if is_named else "parameter 7 of group 0"
    for row, late in (0, False), (1, True):
        weight.grad = torch.sparse_coo_tensor(torch.tensor([[row]]), torch.ones(1, 2), (4, 2))
        said = rf"rows of {name}, a Parameter of shape \(4, 2\)"
        with pytest.warns(RowsReadLate, match=said) if late else nullcontext():
            optimizer.step()


@pytest.mark.parametrize(
    ("name", "options", "changes"),
    [
        (
            "SGD",
            {"momentum": 0.9, "weight_decay": 0.1},
            {"momentum": 0.5, "weight_decay": 0.0, "nesterov": True},
        ),
        ("SGD", {"lr": 0.01, "weight_decay": 0.1}, {"momentum": 0.9}),
        ("SGD", {"lr": 0.01, "weight_decay": 0.1, "momentum": 0.9}, {"momentum": 0.0}),
        ("Adam", {"lr": 0.01}, {"betas": (0.5, 0.9)}),
        ("Adam", {"lr": 0.01}, {"betas": (0.99, 0.9)}),  # here the sum does not converge
        ("AdamW", {"lr": 0.01}, {"weight_decay": 0.3, "eps": 0.1}),
        ("Adam", {"lr": 0.01}, {"weight_decay": 0.1}),  # from a closed form to none
        ("Adam", {"lr": 0.01, "weight_decay": 0.1}, {"weight_decay": 0.0}),  # and back
        ("RMSprop", {"lr": 0.01}, {"alpha": 0.5}),
        ("Rprop", {"lr": 0.1}, {"step_sizes": (0.2, 0.3)}),
        ("ASGD", {"lr": 0.1}, {"lambd": 0.2, "weight_decay": 0.1}),
    ],
)
def test_any_hyperparameter_may_change_while_rows_are_behind(
    name: str, options: dict[str, Any], changes: dict[str, Any]
) -> None:
    def change(step: int, p: nn.Parameter, *optimizers: torch.optim.Optimizer) -> None:
        if step == 100:
            for optimizer in optimizers:
                optimizer.param_groups[0].update(changes)

    p, q, lazy, eager = beside_dense(
        getattr(optim, name), getattr(torch.optim, name), options, meanwhile=change
    )
    lazy.flush()
    assert_close(p, q, 1e-9)
    if changes.get("momentum") != 0:
        assert_states_close(lazy, p, eager, q, 1e-9)


@pytest.mark.parametrize("case", ["sgd, momentum", "adamw", "adagrad, all options"])
@settings(max_examples=examples(25))
@given(data=st.data())
def test_rows_of_any_dimensions_and_any_steps(case: str, data: st.DataObject) -> None:
    """Gradients that list rows, pieces of rows or entries of a (3, 2, 2) parameter, dense and absent ones."""
    size = (3, 2, 2)
    p, q = (nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).view(size)) for _ in range(2))
    lazy, eager = CASES[case].mine([p], unspecified="zero"), CASES[case].reference([q])
    for step in range(data.draw(st.integers(1, 12))):
        leading = data.draw(st.integers(0, 3))
        number = data.draw(st.integers(0, 4))
        columns = [
            data.draw(st.lists(st.integers(0, s - 1), min_size=number, max_size=number))
            for s in size[:leading]
        ]
        indices = torch.tensor(columns, dtype=torch.int64).view(leading, number)
        values = torch.cos(torch.arange(number * 12 // [1, 3, 6, 12][leading], dtype=torch.float64) + step)
        p.grad = torch.sparse_coo_tensor(
            indices, values.view(number, *size[leading:]), size, check_invariants=True
        )
        q.grad = p.grad.to_dense()
        lazy.step()
        eager.step()
        if data.draw(st.booleans()):
            lazy.flush()
    lazy.flush()
    assert_close(p, q, 1e-9)


@pytest.mark.parametrize("case", ["sgd, momentum", "adamw", "adam, all options", "rmsprop", "lion"])
def test_parameters_in_unusual_order_complex_and_empty(case: str) -> None:
    for start in (torch.randn(3, 6).T.double(), torch.randn(6, 2, dtype=torch.complex128)):
        p, q = (nn.Parameter(start.clone(memory_format=torch.preserve_format)) for _ in range(2))
        lazy, eager = CASES[case].mine([p], unspecified="zero"), CASES[case].reference([q])
        for step in range(20):
            rows = torch.tensor([step % 4, step % 3])
            values = torch.full((2, p.shape[1]), 0.5 + step, dtype=p.dtype)
            p.grad = torch.sparse_coo_tensor(rows[None], values, p.shape, check_invariants=True)
            q.grad = torch.zeros_like(q).index_add_(0, rows, values)
            lazy.step()
            eager.step()
        lazy.flush()
        torch.testing.assert_close(p.detach(), q.detach(), rtol=1e-9, atol=1e-9)
    empty = nn.Parameter(torch.zeros(0, 2))
    lazy = CASES[case].mine([empty], unspecified="zero")
    empty.grad = torch.zeros(0, 2).to_sparse(1)
    lazy.step()
    lazy.flush()


@pytest.mark.parametrize(
    "case", ["sgd, momentum", "adamw", "adam, all options", "adagrad, all options", "lion, decay"]
)
@pytest.mark.parametrize("by_rows", [True, False])
def test_frozen_entries_stay_frozen(case: str, by_rows: bool) -> None:
    made = (CASES | MORE_CASES)[case]
    p, q = (nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).view(6, 2)) for _ in range(2))
    start = p.detach().clone()
    mask = torch.tensor([True, False, True, True, True, False]).view(6, 1).expand(6, 2).clone()
    if not by_rows:
        mask[2, 1] = False
    train_only(p, mask)
    train_only(q, mask)
    lazy, eager = made.mine([p], unspecified="zero"), made.mine([q])
    for step in range(20):
        rows = torch.tensor([step % 4])
        values = torch.full((1, 2), 1.0 + step, dtype=torch.float64)
        p.grad, q.grad = sparse(rows, values, p), dense(rows, values, q)
        lazy.step()
        eager.step()
    lazy.flush()
    assert torch.equal(p.detach()[~mask], start[~mask])
    assert_close(p, q, 1e-9)
