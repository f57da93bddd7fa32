"""Operands that are neither ours nor PyTorch's: arrays of numpy, and Tensor-likes of somebody else."""

import math
import operator
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch

import maskgrad as mg
from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor import methods
from maskgrad.semantics.registry import OPERATIONS

MASK = torch.tensor([True, False, True])
OPERATORS = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.lt, operator.eq,
]  # fmt: skip


def masked() -> mg.MaskedTensor:
    return mg.masked(torch.tensor([1.0, math.nan, 3.0]), MASK)


class TensorLike:
    """Says what it is asked, and with what."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function.__name__, args


class WithOperators(TensorLike):
    def __radd__(self, other: Any) -> Any:
        return "radd", (other, self)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("function", OPERATORS)
def test_a_tensor_like_sees_the_mask(function: Any, left: bool) -> None:
    x, other = masked(), TensorLike()
    found = function(other, x) if left else function(x, other)
    assert any(argument is x for argument in found[1])
    assert torch.where(MASK, x, other)[1][1] is x
    assert torch.cat([x, other])[1][0][0] is x


def test_its_own_operator_comes_first() -> None:
    x, other = masked(), WithOperators()
    assert x + other == ("radd", (x, other))
    name, arguments = x - other
    assert name == "__sub__"
    assert arguments[0] is x


METHODS = [
    name
    for operation in OPERATIONS
    for name in (*operation.methods, *(getattr(f, "__name__", "") for f in operation.in_place))
    if not operation.is_property and isinstance(vars(mg.MaskedTensor).get(name), FunctionType)
    if vars(mg.MaskedTensor)[name].__module__ == methods.__name__ and not name.startswith("__")
]


@pytest.mark.parametrize("name", dict.fromkeys(METHODS))
def test_methods_hand_the_mask_over(name: str) -> None:
    x, other, method = masked(), TensorLike(), getattr(mg.MaskedTensor, name)
    for found in (method(x, other), method(x, other=other), method(x, [MASK, other])):
        assert found[0] == name
        assert found[1][0] is x


def test_an_index_hands_the_mask_over() -> None:
    x, other = masked(), TensorLike()
    for index in (other, (other,), (..., other)):
        name, arguments = x[index]
        assert name == "__getitem__"
        assert arguments[0] is x
    x[0] = other  # its answer is nobody's
    x[other] = 1.0
    assert x.tolist() == masked().tolist()


@pytest.mark.parametrize("function", OPERATORS)
def test_arrays_count_as_tensors(function: Any) -> None:
    x, array = masked(), np.array([2.0, 5.0, 3.0])
    tensor = torch.from_numpy(array)
    for found, expected in (
        (function(x, array), function(x, tensor)),
        (function(array, x), function(tensor, x)),
    ):
        assert found.dtype == expected.dtype
        assert found.mask.equal(MASK)
        assert found.filled(0).equal(expected.filled(0))


def test_arrays_that_are_masked_read_only_or_without_dimensions() -> None:
    array, read_only = (
        np.ma.array([2.0, 5.0, math.nan], mask=[0, 0, 1]),
        np.broadcast_to(np.array([2.0]), (3,)),
    )
    for found in (masked() * array, array * masked()):
        assert found.tolist() == [2.0, None, None]
    assert (masked() * read_only[::-1]).tolist() == [2.0, None, 6.0]
    assert (masked() * np.ma.masked).tolist() == (np.ma.masked + masked()).tolist() == [None] * 3
    for number in (np.array(2.0), np.float64(2), np.int32(2)):
        for found in (masked() * number, number * masked()):
            assert found.dtype == torch.float32
            assert found.tolist() == [2.0, None, 6.0]


class Stranger:
    """Has reflected operators, and no idea of tensors: keeps what it is shown."""

    def _shown(self, other: Any) -> Any:
        return other

    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = __rmatmul__ = __rand__ = __gt__ = _shown
    __eq__ = __ne__ = _shown  # type: ignore[assignment]
    __hash__ = object.__hash__


@pytest.mark.parametrize("function", [*OPERATORS, operator.ne, operator.matmul, operator.and_, operator.iadd])
def test_a_stranger_is_not_shown_what_lies_under_the_mask(function: Any) -> None:
    x = masked()
    assert function(x, Stranger()) is x


@pytest.mark.parametrize("function", OPERATORS)
@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow", "scipy"])
def test_tables_are_refused_in_both_orders(function: Any, package: str) -> None:
    table = type("Column", (), {"__module__": f"{package}.core"})()
    name = {"polars": "arrow", "pyarrow": "arrow"}.get(package, package)
    words = (
        rf"a {package} Column on the other side.*mg\.from_{name}\(…\) for Masked.*mg\.interop\.to_{name}\(x\)"
    )
    for left, right in ((table, masked()), (masked(), table)):
        with pytest.raises(UnsupportedOperationError, match=words):
            function(left, right)
    for converter in (getattr(mg, f"from_{name}"), getattr(mg.interop, f"to_{name}")):
        assert callable(converter)


@pytest.mark.parametrize("other", ["text", None, [1.0, 2.0, 3.0]])
def test_what_is_no_number_is_pythons_error(other: Any) -> None:
    x = masked()
    assert (x == other) is False
    with pytest.raises(TypeError, match="unsupported operand type"):
        x + other
    with pytest.raises(TypeError, match="not supported between"):
        assert x < other
