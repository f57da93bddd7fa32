"""From a call to its rule: every spelling arrives, what has no rule is refused by name, writing follows torch."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, assert_number, nan, on, poisoned

X = [1.0, None, 4.0]
AT = on([1, 0], [0, 0])
NOT_HERE, NOWHERE = (None, mg.unspecified), (None, np.ma.masked)
#: A write, and what it must not write.
WRITES: dict[str, tuple[Callable[[mg.MaskedTensor, Any], Any], tuple[Any, Any]]] = {
    "masked_fill": (lambda x, value: x.masked_fill(AT, value), NOT_HERE),
    "where, other=": (lambda x, value: x.where(AT, other=value), NOT_HERE),
    "fill_": (lambda x, value: x.fill_(value), NOT_HERE),
    "scatter": (lambda x, value: x.scatter(0, torch.tensor([[0]]), value), NOT_HERE),
    "x[0, 0]": (lambda x, value: x.__setitem__((0, 0), value), NOWHERE),
    "x[...]": (lambda x, value: x.__setitem__(..., value), NOWHERE),
    "x[mask]": (lambda x, value: x.__setitem__(AT, value), NOWHERE),
}


class TestRefusals:
    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (torch.svd, r"^torch\.svd .*filled\("),
            (torch.fft.fft, r"fft.*filled\("),
            (
                lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, False),
                r"^torch\.quantize_per_tensor_dynamic does not support MaskedTensor.*or x\.compressed",
            ),
            (lambda x: x.q_scale, r"^torch\.Tensor\.q_scale does not support"),
            (
                lambda x: torch.zeros(3).__setitem__(0, x[0, 0]),
                r"^torch\.Tensor\.__setitem__ does not .*y = mg\.masked\(y\)",
            ),
        ],
    )
    def test_what_is_not_supported_is_refused_by_its_public_name(self, call: Any, words: str) -> None:
        with pytest.raises(mg.MaskgradError, match=words) as caught:
            call(poisoned([X, X, X]))
        assert isinstance(caught.value, (TypeError, AttributeError))

    def test_a_name_that_is_no_attribute(self) -> None:
        x = poisoned(X)
        assert not hasattr(x, "q_scale")
        assert not hasattr(x, "__no_such_protocol__")
        with pytest.raises(AttributeError, match="MaskedTensor has no attribute 'no_such_name'"):
            x.no_such_name

    @pytest.mark.parametrize(
        "write", [lambda p, x: p.add_(x), operator.iadd, lambda p, x: torch.add(x, 1, out=p)]
    )
    def test_a_plain_tensor_cannot_hold_a_masked_result(self, write: Any) -> None:
        plain = torch.zeros(3, dtype=torch.float64)
        with pytest.raises(
            RuntimeError, match=r"cannot write a masked result into a plain tensor.*\.filled\(value\)"
        ):
            write(plain, poisoned(X))
        assert plain.tolist() == [0.0] * 3


@pytest.mark.parametrize(("of", "number"), [(X, 2.5), ([None], nan)], ids=["something", "nothing"])
def test_a_plain_tensor_can_hold_a_number(of: Any, number: float) -> None:
    plain = torch.zeros((), dtype=torch.float32)
    assert torch.mean(poisoned(of, torch.float32), None, out=plain) is plain
    assert_number(plain, number)
    assert_number(torch.mean(poisoned(of), (), out=torch.zeros(0)), number, torch.float32)
    assert_entries(torch.mean(poisoned(of), None, out=poisoned(None)), number)
    with pytest.raises(RuntimeError, match="Long"):
        torch.mean(poisoned(of), None, out=torch.zeros((), dtype=torch.int64))


def test_a_masked_tensor_takes_results_with_their_pattern() -> None:
    x = poisoned(X)
    assert torch.mul(x, 2, out=x) is x
    assert_entries(x, [2.0, None, 8.0])
    assert_entries(torch.add(torch.ones(3), 1, out=x), [2.0, 2.0, 2.0], dtype=torch.float64)
    with pytest.raises(TypeError, match="out"):
        torch.max(x, 0, out=(torch.zeros(()), torch.zeros((), dtype=torch.int64)))


def test_a_leaf_is_protected() -> None:
    x = poisoned(X, requires_grad=True)
    for write in (lambda: x.add_(1), lambda: torch.neg(x, out=x), lambda: x.__setitem__(0, 1.0)):
        with pytest.raises(RuntimeError, match="a leaf MaskedTensor that requires grad"):
            write()
    with torch.no_grad():
        x += 1
    assert_entries(x, [2.0, None, 5.0])


@pytest.mark.parametrize(
    ("entry", "dtype", "write"),
    [
        (1, torch.int64, lambda x: x.add_(0.5)),
        (True, torch.bool, lambda x: x.add_(1)),
        (1, torch.float32, lambda x: x.mul_(1j)),
    ],
)
def test_the_target_keeps_its_shape_and_kind_of_dtype(entry: Any, dtype: torch.dtype, write: Any) -> None:
    with pytest.raises(RuntimeError, match=f"cannot be cast to {dtype}"):
        write(poisoned([entry, None], dtype))
    with pytest.raises(RuntimeError, match=r"the result has shape \(2, 3\), the target \(3,\)"):
        poisoned(X).add_(torch.ones(2, 3))


@pytest.mark.every
@pytest.mark.parametrize("name", WRITES)
def test_a_write_of_no_value_is_refused_and_changes_nothing(name: str) -> None:
    """It did nothing to the values, and specified what was there."""
    x, (write, values) = poisoned([[1.0, None], [3.0, 4.0]]), WRITES[name]
    for value in values:
        with pytest.raises(TypeError, match=r"found (None|maskgrad.unspecified|masked); .*unspecified"):
            write(x, value)
    assert_entries(x, [[1.0, None], [3.0, 4.0]])
