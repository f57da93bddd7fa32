"""MaskedTensors beside other types that speak __torch_function__: who is asked, and who answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from tests.poison import assert_entries, nan, on, poisoned


class LoggingTensor(torch.Tensor):
    """Remembers what was done with it."""

    calls: list[str] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class ScalarTimesIdentity:
    """n x n with one number on the diagonal; knows tensors and itself."""

    known: dict[Any, Any] = {}  # noqa: RUF012

    def __init__(self, n: int, value: float) -> None:
        self.n, self.value = n, value

    def tensor(self) -> Tensor:
        return self.value * torch.eye(self.n)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in cls.known or not all(
            issubclass(t, (torch.Tensor, ScalarTimesIdentity)) for t in types
        ):
            return NotImplemented
        return cls.known[func](*args, **(kwargs or {}))


class FriendlyIdentity(ScalarTimesIdentity):
    """Takes MaskedTensors as well."""

    known: dict[Any, Any] = {}  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return cls.known[func](*args, **(kwargs or {})) if func in cls.known else NotImplemented


def plain(x: Any) -> Any:
    return x.tensor() if isinstance(x, ScalarTimesIdentity) else x


for kind in (ScalarTimesIdentity, FriendlyIdentity):
    for function in (torch.add, torch.matmul):
        kind.known[function] = lambda a, b, function=function: function(plain(a), plain(b))


def known_and_not() -> mg.MaskedTensor:
    return poisoned([[1.0, None], [2.0, 3.0]], torch.float32)


class TestASubclassThatLogs:
    def test_both_orders(self) -> None:
        data = torch.tensor([[1.0, nan], [3.0, 4.0]], requires_grad=True)
        logging, x = data.as_subclass(LoggingTensor), known_and_not()
        for product in (logging * x, x * logging, torch.mul(logging, x), torch.mul(x, logging)):
            LoggingTensor.calls.clear()
            assert_entries(product, [[1.0, None], [6.0, 12.0]])
            (grad,) = torch.autograd.grad(product.sum(), data)
            assert grad.tolist() == [[1.0, 0.0], [2.0, 3.0]]

    def test_as_data(self) -> None:
        LoggingTensor.calls.clear()
        x = mg.masked(torch.tensor([1.0, nan]).as_subclass(LoggingTensor), on(1, 0))
        total = x.exp().sum()
        assert type(total) is LoggingTensor
        assert "exp" in LoggingTensor.calls
        assert total.item() == pytest.approx(2.718281828)


@pytest.mark.parametrize("kind", [ScalarTimesIdentity, FriendlyIdentity])
class TestAnotherTensorLike:
    def test_elementwise_functions_defer_to_the_other_type(self, kind: Any) -> None:
        for operands in ((known_and_not(), kind(2, 2.0)), (kind(2, 2.0), known_and_not())):
            if kind is FriendlyIdentity:
                assert_entries(torch.add(*operands), [[3.0, None], [2.0, 5.0]])
                continue
            with pytest.raises(TypeError, match=r"torch.add.*returned NotImplemented"):  # it knows no masks
                torch.add(*operands)

    def test_other_functions_defer_to_the_other_type(self, kind: Any) -> None:
        if kind is FriendlyIdentity:
            assert_entries(torch.matmul(known_and_not(), kind(2, 2.0)), [[2.0, 0.0], [4.0, 6.0]])
            return
        with pytest.raises(TypeError, match=r"torch.matmul.*returned NotImplemented"):
            torch.matmul(known_and_not(), kind(2, 2.0))

    def test_functions_that_neither_type_supports_are_refused(self, kind: Any) -> None:
        for operands in ((known_and_not(), kind(2, 2.0)), (kind(2, 2.0), known_and_not())):
            with pytest.raises(TypeError, match=r"torch.mul.*returned NotImplemented"):
                torch.mul(*operands)
