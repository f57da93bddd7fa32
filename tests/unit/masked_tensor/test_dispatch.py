"""From a call to its rule: every spelling arrives, what has no rule is refused by name, writing follows torch."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad.masked_tensor.dispatch import binding_of
from maskgrad.semantics.registry import OPERATIONS
from tests.poison import assert_entries, assert_number, nan, poisoned

X = [1.0, None, 4.0]


def test_every_function_leads_to_its_own_record_and_to_no_other() -> None:
    owners: dict[Any, set[str]] = {}
    for operation in OPERATIONS:
        assert [one.name for one in OPERATIONS].count(operation.name) == 1
        for function in (*operation.functions, *operation.in_place, *[f for f, _ in operation.reflected]):
            owners.setdefault(function, set()).add(operation.name)
            binding = binding_of(function)
            assert binding is not None
            assert binding.operation is operation
            assert binding.in_place == (function in operation.in_place)
    assert {function: names for function, names in owners.items() if len(names) > 1} == {}


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
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_a_plain_tensor_can_hold_a_number(self, of: Any, number: float, dtype: torch.dtype) -> None:
        plain = torch.zeros((), dtype=dtype)
        assert torch.mean(poisoned(of), None, out=plain) is plain
        assert_number(plain, number, dtype)
        assert_number(torch.mean(poisoned(of), (), out=torch.zeros(0, dtype=dtype)), number, dtype)
        held = torch.mean(poisoned(of), None, out=poisoned(None, dtype))
        assert_entries(held, number, dtype)
        with pytest.raises(RuntimeError, match="Long"):
            torch.mean(poisoned(of), None, out=torch.zeros((), dtype=torch.int64))

    def test_a_masked_tensor_takes_results_with_their_pattern(self) -> None:
        x = poisoned(X)
        assert torch.mul(x, 2, out=x) is x
        assert_entries(x, [2.0, None, 8.0])
        assert_entries(torch.add(torch.ones(3), 1, out=x), [2.0, 2.0, 2.0], dtype=torch.float64)

    def test_results_that_come_in_pairs_have_no_out(self) -> None:
        with pytest.raises(TypeError, match="out"):
            torch.max(poisoned(X), 0, out=(torch.zeros(()), torch.zeros((), dtype=torch.int64)))


class TestInPlace:
    def test_a_leaf_is_protected(self) -> None:
        x = poisoned(X, requires_grad=True)
        for write in (lambda: x.add_(1), lambda: torch.neg(x, out=x), lambda: x.__setitem__(0, 1.0)):
            with pytest.raises(RuntimeError, match="a leaf MaskedTensor that requires grad"):
                write()
        with torch.no_grad():
            x += 1
        assert_entries(x, [2.0, None, 5.0])

    def test_the_target_keeps_its_shape(self) -> None:
        with pytest.raises(RuntimeError, match=r"the result has shape \(2, 3\), the target \(3,\)"):
            poisoned(X).add_(torch.ones(2, 3))

    @pytest.mark.parametrize(
        ("dtype", "write"),
        [
            (torch.int64, lambda x: x.add_(0.5)),
            (torch.bool, lambda x: x.add_(1)),
            (torch.float32, lambda x: x.mul_(1j)),
        ],
    )
    def test_the_target_keeps_its_kind_of_dtype(self, dtype: torch.dtype, write: Any) -> None:
        with pytest.raises(RuntimeError, match=r"can't be cast|cannot be cast"):
            write(torch.ones(2, dtype=dtype))
        with pytest.raises(RuntimeError, match=f"cannot be cast to {dtype}"):
            write(poisoned([True, None] if dtype == torch.bool else [1, None], dtype))
