"""adagrad_rows_ and sgd_rows_: the reference against torch.optim, the compiled body against the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from maskgrad import kernels
from maskgrad.kernels import cpu, reference, use_kernels

BODIES = [reference, cpu]
ADAGRAD = [
    {"lr": 0.1, "weight_decay": 0.0, "eps": 1e-10},
    {"lr": 0.3, "weight_decay": 0.1, "eps": 1e-3, "maximize": True},
]
SGD = [
    {"lr": 0.1},
    {"lr": 0.1, "weight_decay": 0.2, "maximize": True},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1},
    {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "maximize": True},
]


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
@pytest.mark.parametrize("options", ADAGRAD)
def test_adagrad_follows_torch(body, options):
    """All rows are touched, so that the dense optimizer does the same."""
    param, state = torch.randn(9, 5), torch.zeros(9, 5)
    theirs = torch.nn.Parameter(param.clone())
    optimizer = torch.optim.Adagrad([theirs], **options)
    for _ in range(4):
        indices = torch.cat([torch.randperm(9), torch.randint(0, 9, (7,))])
        values = torch.randn(16, 5)
        theirs.grad = torch.zeros(9, 5).index_add(0, indices, values)
        optimizer.step()
        body.adagrad_rows_(param, state, indices, values, **options)
        torch.testing.assert_close(param, theirs.detach())
        torch.testing.assert_close(state, optimizer.state[theirs]["sum"])


@pytest.mark.parametrize("body", BODIES, ids=["reference", "cpu"])
@pytest.mark.parametrize("options", SGD)
def test_sgd_follows_torch(body, options):
    param, buffer = torch.randn(9, 5), torch.full((9, 5), torch.nan)
    first = torch.ones(9, dtype=torch.bool)
    theirs = torch.nn.Parameter(param.clone())
    optimizer = torch.optim.SGD([theirs], **options)
    for _ in range(4):
        indices = torch.cat([torch.randperm(9), torch.randint(0, 9, (7,))])
        values = torch.randn(16, 5)
        theirs.grad = torch.zeros(9, 5).index_add(0, indices, values)
        optimizer.step()
        body.sgd_rows_(
            param, buffer if "momentum" in options else None, indices, values, first_step=first, **options
        )
        torch.testing.assert_close(param, theirs.detach())
        if "momentum" in options:
            torch.testing.assert_close(buffer, optimizer.state[theirs]["momentum_buffer"])
            assert not first.any()
        else:
            assert first.all()


@st.composite
def problems(draw):
    num_rows, n = draw(st.sampled_from([1, 4, 50, 3000])), draw(st.integers(0, 60))
    row = draw(st.sampled_from([(), (1,), (3,), (2, 9)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    grad_dtype = draw(st.sampled_from([dtype, torch.float16]))
    param = torch.randn(num_rows, *row, generator=generator, dtype=dtype)
    state = torch.rand(num_rows, *row, generator=generator, dtype=dtype)
    first = torch.rand(num_rows, generator=generator) < 0.5
    indices = torch.randint(0, num_rows, (n,), generator=generator)
    values = torch.randn(n, *row, generator=generator).to(grad_dtype)
    return param, state, first, indices, values


@given(problems(), st.sampled_from(ADAGRAD + SGD))
def test_bodies_agree_and_leave_other_rows_alone(problem, options):
    param, state, first, indices, values = problem
    results = []
    for body in BODIES:
        p, s, f = param.clone(), state.clone(), first.clone()
        if "eps" in options:
            body.adagrad_rows_(p, s, indices, values, **options)
        else:
            body.sgd_rows_(p, s, indices, values, first_step=f, **options)
        untouched = torch.ones(len(p), dtype=torch.bool).index_fill(0, indices, False)
        assert torch.equal(p[untouched], param[untouched])
        assert torch.equal(s[untouched], state[untouched])
        assert torch.equal(f[untouched], first[untouched])
        results.append((p, s, f))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_thousand_small_gradients_move_a_half_parameter(dtype):
    """torch.optim.SGD adds them one by one, and 1.0 does not move at all."""
    param = torch.ones(3, 2, dtype=dtype)
    values = torch.full((1000, 2), 1e-3, dtype=dtype)
    kernels.sgd_rows_(param, None, torch.ones(1000, dtype=torch.int64), values, lr=0.1)
    torch.testing.assert_close(param[1].float(), torch.full((2,), 0.9), rtol=0, atol=4e-3)
    assert param[0].tolist() == param[2].tolist() == [1.0, 1.0]


def test_duplicates_are_rounded_once():
    for body in BODIES:
        param = torch.zeros(2)
        body.sgd_rows_(
            param, None, torch.ones(4, dtype=torch.int64), torch.tensor([1e8, 1.0, -1e8, 1.0]), lr=1.0
        )
        assert param.tolist() == [0.0, -2.0]


@pytest.mark.parametrize("body", ["reference", "cpu"])
def test_version_counters_move(body):
    param, state = torch.nn.Parameter(torch.randn(5, 2)), torch.zeros(5, 2)
    first, other = torch.ones(5, dtype=torch.bool), torch.zeros(5, 2)
    indices, values = torch.tensor([1, 1]), torch.ones(2, 2)
    versions = [t._version for t in (param, state, first, other, indices, values)]
    with use_kernels(body):
        kernels.adagrad_rows_(param, other, indices, values, lr=0.1, weight_decay=0.0, eps=1e-10)
        kernels.sgd_rows_(param, state, indices, values, lr=0.1, momentum=0.9, first_step=first)
    moved = [
        t._version > v for t, v in zip((param, state, first, other, indices, values), versions, strict=True)
    ]
    assert moved == [True, True, True, True, False, False]


def test_a_saved_tensor_that_was_updated_is_noticed():
    param = torch.nn.Parameter(torch.randn(5, 2))
    loss = (param * param).sum()
    kernels.sgd_rows_(param, None, torch.tensor([0]), torch.ones(1, 2), lr=0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_outside_the_table_changes_nothing(index):
    param, state = torch.randn(5, 2), torch.zeros(5, 2)
    before = param.clone()
    with pytest.raises(IndexError, match=rf"must lie in \[0, 5\).*indices\[1\] is {index}"):
        kernels.adagrad_rows_(
            param, state, torch.tensor([0, index]), torch.ones(2, 2), lr=0.1, weight_decay=0.0, eps=1e-10
        )
    assert torch.equal(param, before)
    assert not state.any()


def test_rows_with_gaps_are_updated_too():
    for options in ADAGRAD:
        wide, state = torch.randn(6, 8), torch.zeros(6, 4)
        param, other = wide[:, ::2], wide.clone()
        plain = param.clone()
        indices, values = torch.tensor([2, 0, 2]), torch.randn(3, 4)
        reference.adagrad_rows_(plain, torch.zeros(6, 4), indices, values, **options)
        kernels.adagrad_rows_(param, state, indices, values, **options)
        torch.testing.assert_close(param, plain)
        assert torch.equal(wide[:, 1::2], other[:, 1::2])


def test_many_rows_over_threads():
    param, values, indices = (
        torch.randn(40_000, 16),
        torch.randn(30_000, 16),
        torch.randint(0, 40_000, (30_000,)),
    )
    results = []
    for body in BODIES:
        p, s = param.clone(), torch.ones_like(param)
        body.adagrad_rows_(p, s, indices, values, **ADAGRAD[1])
        body.sgd_rows_(p, s, indices, values, **SGD[3])
        results.append((p, s))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)
