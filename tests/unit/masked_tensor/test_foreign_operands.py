"""Operands that are neither ours nor PyTorch's: arrays of numpy, and Tensor-likes of somebody else."""

import math
import operator
from typing import Any

import numpy as np
import pytest
import torch

import maskgrad as mg

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
        return "radd", (other, type(self))


@pytest.mark.parametrize("function", OPERATORS)
def test_a_tensor_like_sees_the_mask(function: Any) -> None:
    x, other = masked(), TensorLike()
    for found in (
        function(other, x),
        function(x, other),
        x.add(other),
        x.add(other=other),
        x.where([MASK, other]),
        x[..., other],
    ):
        assert any(argument is x for argument in found[1])
    x[0] = other  # its answer is nobody's
    x[other] = 1.0
    assert x.tolist() == masked().tolist()
    assert x + WithOperators() == ("radd", (x, WithOperators))  # its own operator comes first


@pytest.mark.parametrize("function", OPERATORS)
def test_arrays_count_as_tensors(function: Any) -> None:
    x, array = masked(), np.array([2.0, 5.0, 3.0])
    for operands in ((x, array), (array, x)):
        found = function(*operands)
        expected = function(*[torch.from_numpy(t) if t is array else t for t in operands])
        assert (found.dtype, found.tolist()) == (expected.dtype, expected.tolist())


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


@pytest.mark.parametrize(
    ("package", "name"), {"pandas": "pandas", "polars": "arrow", "pyarrow": "arrow", "scipy": "scipy"}.items()
)
def test_tables_are_refused_in_both_orders(package: str, name: str) -> None:
    table = type("Column", (), {"__module__": f"{package}.core"})()
    words = (
        rf"a {package} Column on the other side.*mg\.from_{name}\(…\) for Masked.*mg\.interop\.to_{name}\(x\)"
    )
    for function in OPERATORS:
        for left, right in ((table, masked()), (masked(), table)):
            with pytest.raises(mg.UnsupportedOperationError, match=words):
                function(left, right)


@pytest.mark.parametrize("other", ["text", None, [1.0, 2.0, 3.0]])
def test_what_is_no_number_is_pythons_error(other: Any) -> None:
    x = masked()
    assert (x == other) is False
    with pytest.raises(TypeError, match="unsupported operand type"):
        x + other
    with pytest.raises(TypeError, match="not supported between"):
        assert x < other
