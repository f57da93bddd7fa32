"""Updates of the touched rows: the loops against torch.optim, and against the formulas in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels import update_rows_, use_kernels
from maskgrad.kernels.updates import formulas


def by_formula(
    rule: str,
    tables: Sequence[Tensor | None],
    indices: Tensor,
    values: Tensor,
    factor: float = 1.0,
    **numbers: Any,
) -> None:
    """The same in PyTorch: merge, gather, update, write back."""
    param = tables[0]
    assert param is not None
    rows, merged = kernels.merge_rows(indices, values.to(param.dtype), len(param))
    used = [t for t in tables if t is not None]
    if rule == "rowwise_adagrad":
        used[1] = used[1].view(-1, *(1 for _ in param.shape[1:]))
    taken = [t[rows] for t in used]
    options = {"weight_decay": 0.0, "maximize": False, **numbers}
    if rule == "sgd":
        options = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, **options}
    elif rule == "adam":
        options["betas"] = options.pop("beta1"), options.pop("beta2")
        options["decoupled_weight_decay"] = options.pop("decoupled", False)
    elif rule == "rmsprop":
        options = {"momentum": 0.0, "centered": False, **options}
    formula: Any = getattr(formulas, f"{rule.removeprefix('rowwise_')}_")
    formula(taken[0], merged * factor, *taken[1:], **options)
    for table, new in zip(used, taken, strict=True):
        table[rows] = new


class Rule(NamedTuple):
    """A rule, which of its states are used, and its hyperparameters."""

    kernel: str
    states: tuple[bool, ...]
    numbers: dict[str, Any]


def rule(kernel: str, *states: bool, **numbers: Any) -> Rule:
    return Rule(kernel, states, numbers | ({"step": 3.0} if kernel == "adam" else {}))


RULES = [
    rule("sgd", False, lr=0.1),
    rule("sgd", False, lr=0.1, weight_decay=0.2, factor=-1.0),
    rule("sgd", True, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
    rule("sgd", True, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    rule("adagrad", True, lr=0.1, weight_decay=0.0, eps=1e-10),
    rule("adagrad", True, lr=0.3, weight_decay=0.1, eps=1e-3, factor=0.125),
    rule("rowwise_adagrad", True, lr=0.1, weight_decay=0.1, eps=1e-3),
    rule("adam", True, True, False, lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8),
    rule("adam", True, True, False, lr=0.1, beta1=0.5, beta2=0.9, eps=1e-3, weight_decay=0.2, factor=-1.0),
    rule("adam", True, True, True, lr=0.1, beta1=0.9, beta2=0.9, eps=1e-8, weight_decay=0.2),
    rule("adam", True, True, True, lr=0.1, beta1=0.0, beta2=0.99, eps=1e-8, weight_decay=0.2, decoupled=True),
    rule("rmsprop", True, False, lr=0.1, alpha=0.9, eps=1e-8, factor=-1.0),
    rule("rmsprop", True, True, lr=0.1, alpha=0.9, eps=1e-3, weight_decay=0.1, momentum=0.9),
]
ROWWISE = RULES[6]


def ids(case: Rule) -> str:
    return "-".join([case.kernel, *[f"{k}={v}" for k, v in case.numbers.items()]])


@st.composite
def problems(draw: Any) -> Any:
    num_rows, n = draw(st.sampled_from([1, 4, 50, 3000])), draw(st.integers(0, 60))
    row = draw(st.sampled_from([(), (1,), (3,), (2, 9)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    grad_dtype = draw(st.sampled_from([dtype, torch.float16]))
    tables = torch.rand(5, num_rows, *row, generator=generator, dtype=dtype) + 1
    tables[1] += 4  # mean squares that no mean exceeds
    indices = torch.randint(0, num_rows, (n,), generator=generator)
    values = torch.randn(n, *row, generator=generator).to(grad_dtype)
    return tables, indices, values


@given(problems(), st.sampled_from(RULES))
def test_loops_follow_the_formulas_and_leave_other_rows_alone(problem: Any, case: Rule) -> None:
    """The formulas are compared with torch.optim by the suite of all optimizers."""
    tables, indices, values = problem
    mine = [t.clone() if use else None for t, use in zip(tables, (True, *case.states), strict=False)]
    if case is ROWWISE:
        mine[1] = mine[1].flatten(1)[:, 0].clone() if mine[1].ndim > 1 else mine[1]
    before = [None if t is None else t.clone() for t in mine]
    assert update_rows_(case.kernel, mine, indices, values, **case.numbers) == (len(values) > 0)
    untouched = torch.ones(len(tables[0]), dtype=torch.bool).index_fill(0, indices, False)
    for new, old in zip(mine, before, strict=True):
        assert new is None or torch.equal(new[untouched], old[untouched])
    by_formula(case.kernel, before, indices, values, **case.numbers)
    for new, wanted in zip(mine, before, strict=True):
        torch.testing.assert_close(new, wanted)


def test_duplicates_are_rounded_once() -> None:
    param = torch.zeros(2)
    indices, values = torch.ones(4, dtype=torch.int64), torch.tensor([1e8, 1.0, -1e8, 1.0])
    assert update_rows_("sgd", [param, None], indices, values, lr=1.0)
    assert param.tolist() == [0.0, -2.0]


def test_version_counters_move() -> None:
    param, state = torch.nn.Parameter(torch.randn(5, 2)), torch.zeros(5, 2)
    indices, values = torch.tensor([1, 1]), torch.ones(2, 2)
    versions = [t._version for t in (param, state, indices, values)]
    assert update_rows_("adagrad", [param, state], indices, values, lr=0.1, weight_decay=0.0, eps=1e-10)
    assert [t._version for t in (param, state)] == [v + 1 for v in versions[:2]]
    assert [t._version for t in (indices, values)] == versions[2:]
    assert param.grad_fn is None


def test_a_saved_tensor_that_was_updated_is_noticed() -> None:
    param = torch.nn.Parameter(torch.randn(5, 2))
    loss = (param * param).sum()
    assert update_rows_("sgd", [param, None], torch.tensor([0]), torch.ones(1, 2), lr=0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("index", [-1, 5])
@pytest.mark.parametrize("case", RULES, ids=ids)
def test_an_index_outside_the_table_changes_nothing(case: Rule, index: int) -> None:
    tables = [
        torch.rand(5, *(() if case is ROWWISE and k else (2,))) if use else None
        for k, use in enumerate((True, *case.states))
    ]
    before = [None if t is None else t.clone() for t in tables]
    with pytest.raises(IndexError, match=rf"must lie in \[0, 5\).*indices\[1\] is {index}"):
        update_rows_(case.kernel, tables, torch.tensor([0, index]), torch.ones(2, 2), **case.numbers)
    assert all(t is None or torch.equal(t, old) for t, old in zip(tables, before, strict=True))


def test_what_the_loops_do_not_support_is_not_written() -> None:
    indices, values, numbers = torch.tensor([2, 0, 2]), torch.randn(3, 4), {"lr": 0.3}
    wide = torch.randn(6, 8)
    for param in (wide[:, ::2], torch.ones(6, 4).bfloat16(), torch.ones(6, 4, dtype=torch.complex64)):
        before = param.clone()
        assert not update_rows_("sgd", [param, None], indices, values, **numbers)
        assert torch.equal(param, before)
    param = torch.ones(6, 4)
    with use_kernels("reference"):
        assert not update_rows_("sgd", [param, None], indices, values, **numbers)
    assert param.eq(1).all()


@pytest.mark.parametrize("width", [16, 17])
def test_many_rows_over_threads(width: int) -> None:
    param, values = torch.randn(40_000, width), torch.randn(30_000, width)
    indices = torch.randint(0, 40_000, (30_000,))
    results: list[list[Tensor]] = []
    for update in (update_rows_, by_formula):
        p, a, b, c = tables = [param.clone(), *(torch.ones_like(param) for _ in range(3))]
        update("adagrad", [p, a], indices, values, lr=0.3, weight_decay=0.1, eps=1e-3)
        update("sgd", [p, b], indices, values, lr=0.1, momentum=0.9)
        update("adam", [p, a, c, None], indices, values, step=2.0, lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8)
        results.append(tables)
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)
