"""What is peculiar to Adagrad: its state from the start, and one update for all look-ups of a row."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from maskgrad.optim import Adagrad
from tests.unit.optim.kinds import coo


def test_two_look_ups_of_a_row_are_one_update_with_the_summed_gradient() -> None:
    e = nn.Embedding(3, 1, sparse=True)
    old = e.weight.detach().clone()
    optimizer = Adagrad(e.parameters(), lr=1.0)
    i = torch.tensor([1])
    (e(i) + e(i) * 2).sum().backward()
    optimizer.step()
    assert optimizer.state[e.weight]["sum"].tolist() == [[0.0], [9.0], [0.0]]
    torch.testing.assert_close(e.weight - old, torch.tensor([[0.0], [-1.0], [0.0]]))


def test_the_state_is_there_before_the_first_step_as_in_torch() -> None:
    p, q = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.complex64))
    ours = Adagrad([p, q], initial_accumulator_value=0.5).state
    theirs = torch.optim.Adagrad([p, q], initial_accumulator_value=0.5).state
    for param in (p, q):
        assert ours[param].keys() == theirs[param].keys()
        for key, value in theirs[param].items():
            assert torch.equal(ours[param][key], value)
            assert ours[param][key].dtype == value.dtype


def test_a_group_added_later_starts_with_its_own_value() -> None:
    p, q = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = Adagrad([p])
    optimizer.add_param_group({"params": [q], "initial_accumulator_value": 3.0})
    q.grad = torch.ones(1)
    optimizer.step()
    assert optimizer.state[q]["sum"].item() == 4.0


def test_the_learning_rate_decays_with_the_steps() -> None:
    p, q = nn.Parameter(torch.ones(2, 1)), nn.Parameter(torch.ones(2, 1))
    ours, theirs = Adagrad([p], lr=0.1, lr_decay=1.0), torch.optim.Adagrad([q], lr=0.1, lr_decay=1.0)
    for _ in range(3):
        p.grad = coo([[1, 1]], [[1.0], [2.0]], (2, 1))
        q.grad = torch.tensor([[0.0], [3.0]])
        ours.step()
        theirs.step()
    torch.testing.assert_close(p, q)
    assert ours.state[p]["step"].item() == 3


def test_sparse_rows_follow_torch_adagrad() -> None:
    start = torch.randn(50, 4)
    p, q = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    ours, theirs = Adagrad([p], lr=0.1), torch.optim.Adagrad([q], lr=0.1)
    for _ in range(10):
        gradient = coo(torch.randint(50, (1, 200)), torch.randn(200, 4), (50, 4))
        p.grad, q.grad = gradient.clone(), gradient.clone()
        ours.step()
        theirs.step()
    torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


def test_states_can_be_shared() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = Adagrad([p])
    optimizer.share_memory()
    assert optimizer.state[p]["sum"].is_shared()


def test_a_step_count_from_an_old_checkpoint_is_a_number() -> None:
    p = nn.Parameter(torch.ones(2))
    optimizer = Adagrad([p], lr=0.1, lr_decay=1.0)
    state = optimizer.state_dict()
    state["state"][0]["step"] = 4
    optimizer.load_state_dict(state)
    p.grad = torch.ones(2)
    optimizer.step()
    assert optimizer.state[p]["step"].item() == 5
    torch.testing.assert_close(p, torch.full((2,), 1 - 0.1 / 5))


@pytest.mark.parametrize("name", ["lr_decay", "initial_accumulator_value", "eps"])
@pytest.mark.parametrize(
    ("value", "words"), [(-1.0, "at least 0, got -1"), (float("nan"), "finite, got nan")]
)
def test_numbers_out_of_range(name: str, value: float, words: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be {words}"):
        Adagrad([nn.Parameter(torch.ones(1))], **{name: value})
