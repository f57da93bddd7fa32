"""Twins follow what a program does with memory: views, writes, other names for the same storage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from maskgrad.doctor.recorder import Recorder

REAL = torch.tensor([[True, True, True, False], [True, False, False, False], [True, True, False, False]])
X = torch.arange(12.0).reshape(3, 4) + 1
OTHER = torch.where(REAL, X, -X)


def _in_views_and_their_bases(x: Tensor) -> Tensor:
    x = x.clone()
    x.t()[1:].narrow(1, 0, 2).add_(x[0, 3])
    last = x[:, -1]
    x.mul_(3)
    return last


def _under_another_name(x: Tensor) -> Tensor:
    named = torch.zeros(3, 4)
    before = named.view(-1)
    before.add_(1)
    return named.set_(x * 2).add(before.sum())


def _in_given_tensors_with_random_numbers_and_places(x: Tensor) -> Tensor:
    given = torch.empty(3, 4)
    torch.add(torch.dropout(x, 0.5, train=True), torch.rand_like(x), out=given)
    given[x < 0] = 7.0
    given.index_put_((torch.tensor([0, 0]),), x[1], accumulate=True)
    return torch.zeros(3, 4).scatter_add_(1, x.argsort(1), given)


@pytest.mark.parametrize(
    "program",
    [_in_views_and_their_bases, _under_another_name, _in_given_tensors_with_random_numbers_and_places],
)
def test_a_twin_equals_the_result_for_the_other_batch(program: Callable[[Tensor], Tensor]) -> None:
    def plain(batch: Tensor) -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        return program(batch), torch.get_rng_state()

    (expected, state), (theirs, _) = plain(X), plain(OTHER)
    mode = Recorder([REAL], {})
    mode.set_twin(X, OTHER)
    with mode:
        found, after = plain(X)
    twin = mode.twin(found)
    assert mode.not_followed == []
    torch.testing.assert_close((found, after, twin), (expected, state, theirs), rtol=0, atol=0)
    assert not torch.equal(found, theirs)


def test_what_cannot_be_followed_is_told_and_the_program_goes_on() -> None:
    mode, matrix = Recorder([REAL], {}), torch.eye(3)
    mode.set_twin(X, OTHER)
    mode.set_twin(matrix, torch.zeros(3, 3))
    mode.validity.set(X, REAL)
    with mode:
        assert X.sum() >= 0, "the program sees its own numbers"
        inverse = torch.linalg.inv(matrix)
        for _ in range(100):
            X * 2
    torch.testing.assert_close(inverse, matrix)
    told = str(mode.not_followed)
    assert "_local_scalar_dense was not tracked" in told
    assert "a Python number depends on the padding" in told
    assert "linalg_inv_ex" in told or "singular" in told
    assert len(mode._storages) + len(mode.validity._memories) < 40, (
        "twins of tensors that are gone are dropped"
    )
