"""A missing gradient counts as zero: numbers at which a closed form changes, numbers that change, long gaps.

What all optimizers have in common is in ``suite/behind.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from maskgrad import optim
from maskgrad.optim.lazy.zero_gradients import RowsReadLate
from tests.effort import examples
from tests.unit.optim.beside import assert_close, assert_states_close, beside_dense, sparse
from tests.unit.optim.optimizers import DECLARED, Case
from tests.unit.optim.suite.behind import Behind

#: Numbers that the shared list does not have, and at which a closed form changes; and those of later steps.
NUMBERS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "dampening and decay": ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}, {}),
    "nesterov and decay": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {}),
    "overshooting decay": ("SGD", {"lr": 0.5, "weight_decay": 3.0}, {}),
    "to nesterov": ("SGD", {"momentum": 0.9, "weight_decay": 0.1}, {"momentum": 0.5, "nesterov": True}),
    "to momentum": ("SGD", {"lr": 0.01, "weight_decay": 0.1}, {"momentum": 0.9}),
    "from momentum": ("SGD", {"lr": 0.01, "weight_decay": 0.1, "momentum": 0.9}, {"momentum": 0.0}),
    "no second moment": ("Adam", {"lr": 0.01, "betas": (0.5, 0.0)}, {}),
    "betas": ("Adam", {"lr": 0.01}, {"betas": (0.99, 0.9)}),  # now the sum does not converge
    "from a closed form to none": ("Adam", {"lr": 0.01}, {"weight_decay": 0.1}),
    "and back": ("Adam", {"lr": 0.01, "weight_decay": 0.1}, {"weight_decay": 0.0}),
    "decay and eps": ("AdamW", {"lr": 0.01}, {"weight_decay": 0.3, "eps": 0.1}),
    "decay of everything": ("AdamW", {"lr": 0.1, "weight_decay": 10.0}, {}),
    "overshooting decoupled decay": ("AdamW", {"lr": 0.1, "weight_decay": 12.0}, {}),
    "no learning rate": ("AdamW", {"lr": 0.0}, {}),
    "alpha": ("RMSprop", {"lr": 0.01}, {"alpha": 0.5}),
    "momentum without decay": ("RMSprop", {"lr": 0.01, "momentum": 0.9}, {}),
    "centered momentum": ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True}, {}),
    "step sizes": ("Rprop", {"lr": 0.1}, {"step_sizes": (0.2, 0.3)}),
    "all of ASGD": ("ASGD", {"lr": 0.1}, {"lambd": 0.2, "weight_decay": 0.1}),
}


@pytest.mark.parametrize(("name", "options", "changes"), NUMBERS.values(), ids=NUMBERS)
def test_where_a_closed_form_changes_and_where_numbers_do(
    name: str, options: dict[str, Any], changes: dict[str, Any]
) -> None:
    (case,) = (Case(one, "", options) for one in DECLARED if one.ours.__name__ == name)

    def change(step: int, p: nn.Parameter, *optimizers: torch.optim.Optimizer) -> None:
        for optimizer in optimizers if step == 100 else ():
            optimizer.param_groups[0].update(changes)

    p, q, lazy, eager = beside_dense(case.ours, case.theirs, options, meanwhile=change)
    lazy.flush()
    assert_close(p, q, 1e-9)
    if changes.get("momentum") != 0:
        assert_states_close(lazy, p, eager, q, 1e-9)
    if not changes:
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


Numbers = Callable[[int], dict[str, Any]]


def idle(numbers: Numbers, first: int, number: int, dtype: torch.dtype, **options: Any) -> None:
    """AdamW's steps after the ``first``, without gradients, of rows that are read at different times."""
    scale = 10.0 ** torch.arange(-10, 2)  # from nothing at all to large, eps below and above the root
    m = torch.randn(4, 12, generator=torch.Generator().manual_seed(3)) * scale
    m[:, 0] = 0
    v = m.square() * torch.linspace(0.1, 10, 48).view(4, 12)
    states = {"exp_avg": m, "exp_avg_sq": v} | ({"max_exp_avg_sq": v * 2} if options.get("amsgrad") else {})
    found = []
    for library, precise in ((optim, dtype), (torch.optim, torch.float64)):
        p = nn.Parameter(torch.zeros(4, 12, dtype=precise))  # rounding does not hide how far it is moved
        meaning: dict[str, Any] = {"unspecified": "zero"} if library is optim else {}
        optimizer: Any = library.AdamW([p], **options, **meaning)
        optimizer.state[p] = {"step": torch.tensor(float(first))}
        optimizer.state[p] |= {name: t.to(precise) for name, t in states.items()}
        found.append((optimizer, p))
    (lazy, p), (eager, q) = found
    q.grad = torch.zeros_like(q)
    at = torch.tensor([0, number // 6, max(number - 10, 0), number - 1])
    for t in range(number):
        rows = (at == t).nonzero().view(-1)
        p.grad = sparse(rows, torch.zeros(len(rows), 12), p)
        for optimizer, _ in found:
            optimizer.param_groups[0].update(numbers(first + t + 1))
            optimizer.step()
    lazy.flush()
    precise = dtype is torch.float64
    torch.testing.assert_close(p.detach().double(), q.detach(), rtol=1e-9 if precise else 1e-5, atol=0)
    for name in ("exp_avg", "exp_avg_sq"):
        expected = eager.state[q][name].to(dtype)
        torch.testing.assert_close(lazy.state[p][name], expected, rtol=1e-9 if precise else 1e-4, atol=1e-37)


@pytest.mark.filterwarnings("ignore::maskgrad.optim.lazy.zero_gradients.RowsReadLate")
@pytest.mark.parametrize(
    ("first", "number", "numbers"),
    [
        (0, 3000, lambda t: {}),
        (2000, 600, lambda t: {"lr": 1e-6 * t}),
        (2000, 600, lambda t: {"lr": 0.01 * 0.99**t}),
        (2000, 600, lambda t: {"lr": 0.01 * (1 + math.cos(t / 20))}),
        (2000, 600, lambda t: {"lr": 0.01 * (t % 50 == 0)}),
        (1000, 600, lambda t: {"betas": (0.85 + 0.1 * math.sin(t / 30), 0.99 + 0.009 * math.cos(t / 50))}),
    ],
    ids=["long", "rising", "falling", "to 0 and back", "seldom", "betas change"],
)
def test_numbers_of_adam_change_and_are_strange(first: int, number: int, numbers: Any) -> None:
    idle(numbers, first, number, torch.float64, weight_decay=0.1)


@pytest.mark.filterwarnings("ignore::maskgrad.optim.lazy.zero_gradients.RowsReadLate")
@settings(max_examples=examples(60))
@given(
    betas=st.tuples(  # what a tiny beta1 leaves of a state is rounding
        st.just(0.0) | st.floats(0.5, 0.995), st.floats(0.3, 0.9999)
    ),
    eps=st.sampled_from([1e-15, 1e-8, 1e-3, 1.0]),
    first=st.integers(0, 3000),
    number=st.integers(1, 200),
    amsgrad=st.booleans(),
)
def test_any_numbers_of_adam(betas: Any, eps: float, first: int, number: int, amsgrad: bool) -> None:
    idle(lambda t: {}, first, number, torch.float32, betas=betas, eps=eps, amsgrad=amsgrad)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_a_table_without_entries_takes_dense_gradients_after_rows(shape: tuple[int, int]) -> None:
    param = nn.Parameter(torch.zeros(shape))
    optimizer = optim.Adam([param], unspecified="zero")
    for gradient in (torch.zeros(shape).to_sparse(1), torch.zeros(shape)):
        param.grad = gradient
        optimizer.step()
    assert optimizer.state[param]["exp_avg"].shape == shape


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_dense_step_begins_with_the_rows_that_are_behind(name: str) -> None:
    p, q = (nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)) for _ in range(2))
    options = {"lr": 0.1, "weight_decay": 0.1} | ({"momentum": 0.9} if name == "SGD" else {})
    lazy: Any = getattr(optim, name)([p], unspecified="zero", **options)
    eager: Any = getattr(torch.optim, name)([q], **options)
    for rows in ([0, 1, 2, 3], [0], [1], None):
        dense = torch.ones(4, 3, dtype=torch.float64)
        p.grad = dense if rows is None else sparse(torch.tensor(rows), dense[rows], p)
        q.grad = p.grad.to_dense()
        lazy.step()
        eager.step()
    lazy.flush()
    torch.testing.assert_close(p.detach(), q.detach())
