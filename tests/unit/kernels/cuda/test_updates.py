"""Updates of rows for CUDA against the reference."""

from __future__ import annotations

import pytest
import torch

from tests.unit.kernels.bodies import cuda, reference

ADAM = {"step": 3.0, "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-3}
RMSPROP = {"lr": 0.1, "alpha": 0.9, "eps": 1e-3}
RULES = [  # operator, which of its states there are, numbers
    ("sgd_rows_", [False], {"lr": 0.1}),
    ("sgd_rows_", [True], {"lr": 0.1, "weight_decay": 0.2, "factor": -1.0}),
    ("sgd_rows_", [True], {"lr": 0.1, "momentum": 0.9}),
    (
        "sgd_rows_",
        [True],
        {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1, "first_step": True},
    ),
    ("sgd_rows_", [True], {"lr": 0.1, "momentum": 0.9, "nesterov": True, "factor": 0.5}),
    ("adagrad_rows_", [True], {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-3, "factor": -2.0}),
    ("rowwise_adagrad_rows_", [True], {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-3, "factor": -2.0}),
    ("adam_rows_", [True, True, False], {**ADAM, "weight_decay": 0.1}),
    ("adam_rows_", [True, True, True], {**ADAM, "weight_decay": 0.1, "decoupled": True, "factor": 0.5}),
    ("rmsprop_rows_", [True, False, False], {**RMSPROP, "weight_decay": 0.1}),
    ("rmsprop_rows_", [True, True, True], {**RMSPROP, "momentum": 0.9, "factor": -1.0}),
]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}

pytestmark = pytest.mark.usefixtures("device")


def tables(name, states, num_rows, row, dtype):
    shape = (num_rows,) if name == "rowwise_adagrad_rows_" else (num_rows, *row)
    made = [(torch.rand(shape) + 0.5).to(dtype) if there else None for there in states]
    if name == "rmsprop_rows_" and made[1] is not None:
        made[1] = made[1] * 0.1  # the square of a mean is below the mean of squares
    return [torch.randn(num_rows, *row).to(dtype), *made]


def check(rule, num_rows, row, dtype, indices, values):
    name, states, numbers = rule
    before, results = tables(name, states, num_rows, row, dtype), []
    first = torch.rand(num_rows) < 0.5
    for body in (cuda, reference):
        copies = [None if t is None else t.clone() for t in before]
        options = {**numbers, "first_step": first.clone()} if "first_step" in numbers else numbers
        getattr(body, name)(*copies, indices, values, **options)
        results.append([*[t for t in copies if t is not None], options.get("first_step", first)])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    untouched = torch.ones(num_rows, dtype=torch.bool).index_fill(0, indices, False)
    for mine, old in zip(results[0], [*[t for t in before if t is not None], first], strict=True):
        assert torch.equal(mine[untouched], old[untouched])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule[0]}-{len(rule[2])}")
@pytest.mark.parametrize(
    ("dtype", "row"),
    [(torch.float32, (2, 9)), (torch.float32, ()), (torch.float64, (3,)), (torch.bfloat16, (130,))],
)
def test_bodies_agree_and_leave_other_rows_alone(rule, dtype, row):
    indices = torch.cat([torch.randint(0, 20, (6,)), torch.full((11,), 4)])[torch.randperm(17)]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    check(rule, 25, row, dtype, indices, torch.randn(17, *row, dtype=wide))


@pytest.mark.parametrize("rule", RULES[::2], ids=lambda rule: rule[0])
def test_odd_gradients(rule):
    check(rule, 5, (3,), torch.float32, torch.tensor([3, 3, 0]), torch.randn(3, 3).half())
    check(rule, 5, (3,), torch.float32, torch.tensor([3, 3, 0]), torch.randn(3, 3).t())
    check(rule, 5, (3,), torch.float32, torch.zeros(0, dtype=torch.int64), torch.randn(0, 3))
    check(rule, 5, (3,), torch.float32, torch.tensor([4]), torch.randn(1, 1).expand(1, 3))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule[0]}-{len(rule[2])}")
def test_rows_with_gaps_run_the_reference(rule):
    name, states, numbers = rule
    wide = torch.randn(6, 8)
    param, before = wide[:, ::2], wide.clone()
    _, *rest = tables(name, states, 6, (4,), torch.float32)
    expected = [param.clone(), *[None if t is None else t.clone() for t in rest]]
    marks = {"first_step": torch.ones(6, dtype=torch.bool)} if "first_step" in numbers else {}
    indices, values = torch.tensor([2, 0, 2]), torch.randn(3, 4)
    getattr(reference, name)(*expected, indices, values, **{**numbers, **marks})
    marks = {k: torch.ones_like(v) for k, v in marks.items()}
    getattr(cuda, name)(param, *rest, indices, values, **{**numbers, **marks})
    torch.testing.assert_close(param, expected[0])
    assert torch.equal(wide[:, 1::2], before[:, 1::2])


def test_duplicates_are_rounded_once():
    param = torch.zeros(2)
    cuda.sgd_rows_(param, None, torch.ones(4, dtype=torch.int64), torch.tensor([1e8, 1.0, -1e8, 1.0]), lr=1.0)
    assert param.tolist() == [0.0, -2.0]


def test_numbers_keep_their_digits():
    """Triton passes numbers as float32 unless it is told otherwise."""
    param = torch.zeros(1, dtype=torch.float64)
    cuda.sgd_rows_(param, None, torch.tensor([0]), torch.ones(1, dtype=torch.float64), lr=0.1)
    assert param.item() == -0.1


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_outside_the_table_changes_nothing(index, device):
    if device.type == "cuda":
        pytest.skip("the device reports it, and ends: as PyTorch's own kernels do")
    param, state = torch.randn(5, 2), torch.zeros(5, 2)
    before = param.clone()
    with pytest.raises(IndexError, match=rf"must lie in \[0, 5\).*indices\[1\] is {index}"):
        cuda.adagrad_rows_(
            param, state, torch.tensor([0, index]), torch.ones(2, 2), lr=0.1, weight_decay=0.0, eps=1e-10
        )
    assert torch.equal(param, before)
    assert not state.any()
