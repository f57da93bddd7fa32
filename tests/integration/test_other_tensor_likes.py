"""MaskedTensors beside other types that speak __torch_function__: who is asked, and who answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, nan, on, poisoned


class LoggingTensor(torch.Tensor):
    """Remembers what was done with it."""

    calls: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_that_logs() -> None:
    data, x = torch.tensor([[1.0, nan], [3.0, 4.0]], requires_grad=True), poisoned([[1.0, None], [2.0, 3.0]])
    logging = data.as_subclass(LoggingTensor)
    for product in (logging * x, x * logging, torch.mul(logging, x), torch.mul(x, logging)):
        assert_entries(product, [[1.0, None], [6.0, 12.0]])
        (grad,) = torch.autograd.grad(product.sum(), data)
        assert grad.tolist() == [[1.0, 0.0], [2.0, 3.0]]
    LoggingTensor.calls.clear()
    total = mg.masked(torch.tensor([1.0, nan]).as_subclass(LoggingTensor), on(1, 0)).exp().sum()
    assert type(total) is LoggingTensor
    assert "exp" in LoggingTensor.calls
    assert total.item() == pytest.approx(2.718281828)


class ScalarTimesIdentity:
    """n x n with one number on the diagonal, which can be added and multiplied; knows tensors and itself."""

    takes_masks = False

    def __init__(self, n: int, value: float) -> None:
        self.tensor = value * torch.eye(n)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (torch.add, torch.matmul) or (mg.MaskedTensor in types and not cls.takes_masks):
            return NotImplemented
        return func(*(a.tensor if isinstance(a, ScalarTimesIdentity) else a for a in args))


class FriendlyIdentity(ScalarTimesIdentity):
    takes_masks = True


@pytest.mark.parametrize("function", [torch.add, torch.matmul, torch.mul])
def test_functions_defer_to_another_type(function: Any) -> None:
    """One that knows masks answers; nobody does for one that knows none, nor for what neither supports."""
    x, friend = poisoned([[1.0, None], [2.0, 3.0]], torch.float32), FriendlyIdentity(2, 2.0)
    for operands in ((x, friend), (friend, x)):
        if function is torch.mul:
            with pytest.raises(TypeError, match=r"torch.mul.*returned NotImplemented"):
                function(*operands)
        elif function is torch.add:
            assert_entries(function(*operands), [[3.0, None], [2.0, 5.0]])
    if function is torch.matmul:
        assert_entries(function(x, friend), [[2.0, 0.0], [4.0, 6.0]])
    with pytest.raises(TypeError, match="returned NotImplemented"):
        function(x, ScalarTimesIdentity(2, 2.0))
