"""Twins follow what a program does with memory: views, writes, other names for the same storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from maskgrad.doctor.operations import same
from maskgrad.doctor.recorder import Recorder
from maskgrad.doctor.twins import Twins

REAL = torch.tensor([[True, True, True, False], [True, False, False, False], [True, True, False, False]])


def _pair() -> tuple[Tensor, Tensor]:
    """A batch, and the same one with other padding."""
    x = torch.arange(12.0).reshape(3, 4) + 1
    return x, torch.where(REAL, x, -x)


def _one_after_the_other(x: Tensor) -> Tensor:
    rows = torch.zeros(3, 4)
    for time in range(4):
        rows[:, time] = x[:, time] * 2
    return rows


def _in_a_view_of_a_view(x: Tensor) -> Tensor:
    x = x.clone()
    x.t()[1:].narrow(1, 0, 2).add_(x[0, 3])
    return x


def _in_a_base_behind_a_view(x: Tensor) -> Tensor:
    x = x.clone()
    last = x[:, -1]
    x.mul_(3)
    return last


def _into_a_given_tensor(x: Tensor) -> Tensor:
    given = torch.empty(3, 4)
    torch.add(x, 1, out=given)
    return given


def _under_another_name(x: Tensor) -> Tensor:
    named = torch.zeros(3, 4)
    before = named.view(-1)
    before.add_(1)
    return named.set_(x * 2).add(before.sum())  # type: ignore[call-overload, no-any-return]


def _with_random_numbers(x: Tensor) -> Tensor:
    return torch.dropout(x, 0.5, train=True) + torch.rand_like(x)


def _with_places(x: Tensor) -> Tensor:
    return torch.zeros(3, 4).scatter_add_(1, x.argsort(1), x)


def _in_place_with_an_index(x: Tensor) -> Tensor:
    kept = torch.ones(3, 4)
    kept[x < 0] = 7.0
    kept.index_put_((torch.tensor([0, 0]),), x[1], accumulate=True)
    return kept


class _BlackBox(torch.autograd.Function):
    """Nobody knows what happens inside; it looks at the numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.stack([row.max() * row for row in x.unbind()])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x.cumsum(1)


def _a_black_box(x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(_BlackBox.apply(x).square().sum(), x)  # type: ignore[no-untyped-call]
    return gradient


PROGRAMS: list[Callable[[Tensor], Tensor]] = [
    _one_after_the_other, _in_a_view_of_a_view, _in_a_base_behind_a_view, _into_a_given_tensor, _under_another_name,
    _with_random_numbers, _with_places, _in_place_with_an_index, _a_black_box,
]  # fmt: skip


@pytest.mark.parametrize("make", [Twins, lambda: Recorder([REAL], {})], ids=["twins", "recorder"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_twin_equals_the_result_for_the_other_batch(
    program: Callable[[Tensor], Tensor], make: Callable[[], Twins]
) -> None:
    x, other = _pair()
    states = []

    def plain(batch: Tensor) -> Tensor:
        torch.manual_seed(0)
        found = program(batch)
        states.append(torch.get_rng_state())
        return found

    expected, theirs = plain(x), plain(other)
    mode = make()
    mode.set_twin(x, other)
    with mode:
        found = plain(x)
    twin = mode.twin(found)
    assert mode.not_followed == []
    assert twin is not None
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(twin, theirs, rtol=0, atol=0)
    assert not torch.equal(found, twin)
    assert torch.equal(states[0], states[-1])


def test_a_branch_on_a_number_of_the_padding_is_told() -> None:
    x, other = _pair()
    mode = Twins()
    mode.set_twin(x, other)
    with mode:
        if x.sum() < 0:
            raise AssertionError("the program sees its own numbers")
    assert any("_local_scalar_dense was not tracked" in why for _, why in mode.not_followed)
    assert any("a Python number depends on the padding" in why for _, why in mode.not_followed)


def test_an_operation_that_fails_on_garbage_is_told_and_the_program_goes_on() -> None:
    matrix = torch.eye(3)
    mode = Twins()
    mode.set_twin(matrix, torch.zeros(3, 3))
    with mode:
        inverse = torch.linalg.inv(matrix)
    torch.testing.assert_close(inverse, matrix)
    assert "linalg_inv_ex" in str(mode.not_followed) or "singular" in str(mode.not_followed)


def test_twins_of_tensors_that_are_gone_are_dropped() -> None:
    x, other = _pair()
    for mode in (Twins(), Recorder([REAL], {})):
        mode.set_twin(x, other)
        if isinstance(mode, Recorder):
            mode.validity.set(x, REAL)
        with mode:
            for _ in range(100):
                x * 2
        assert len(mode._storages) < 20
        if isinstance(mode, Recorder):
            assert len(mode.validity._memories) < 20


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ([1.0, torch.nan], [1.0, torch.nan], True),
        ([1.0, torch.nan], [torch.nan, 1.0], False),
        ([torch.inf, -torch.inf], [torch.inf, -torch.inf], True),
        ([torch.inf, -torch.inf, torch.nan], [torch.inf, 0.0, torch.nan], False),
        ([0.0], [-0.0], True),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.complex64])
def test_nan_equals_nan(a: list[float], b: list[float], dtype: torch.dtype, *, equal: bool) -> None:
    assert same(torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)) is equal
    assert same(torch.tensor(b, dtype=dtype), torch.tensor(a, dtype=dtype)) is equal
