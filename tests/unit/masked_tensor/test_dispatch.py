"""From a call to its rule: every spelling arrives, what has no rule is refused by name, writing follows torch."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import maskgrad as mg
from maskgrad.masked_tensor.dispatch import binding_of
from maskgrad.semantics.registry import OPERATIONS
from tests.poison import assert_entries, assert_number, gradient, inf, leaf, nan, on, poisoned

X = [1.0, None, 4.0]


class TestRegistry:
    def test_names_are_unique(self) -> None:
        names = [operation.name for operation in OPERATIONS]
        assert len(names) == len(set(names))

    def test_no_function_is_claimed_twice(self) -> None:
        owners: dict[Any, set[str]] = {}
        for operation in OPERATIONS:
            reflected = [function for function, _ in operation.reflected]
            for function in (*operation.functions, *operation.in_place, *reflected):
                owners.setdefault(function, set()).add(operation.name)
        assert {f: names for f, names in owners.items() if len(names) > 1} == {}

    def test_every_spelling_leads_to_its_own_record(self) -> None:
        for operation in OPERATIONS:
            for function in (*operation.functions, *operation.in_place):
                binding = binding_of(function)
                assert binding is not None
                assert binding.operation is operation
                assert binding.in_place == (function in operation.in_place)
            for function, usual in operation.reflected:
                binding = binding_of(function)
                assert binding is not None
                assert (binding.operation, binding.usual) == (operation, usual)

    @pytest.mark.parametrize(
        "function",
        [
            torch.absolute, torch.acos, torch.add, torch.amax, torch.any, torch.argmin, torch.atan2, torch.bmm,
            torch.cat, torch.chunk, torch.clamp, torch.clone, torch.concat, torch.diagonal, torch.div, torch.dot,
            torch.eq, torch.erfinv, torch.exp, torch.flatten, torch.floor_divide, torch.ge, torch.hstack,
            torch.index_select, torch.isnan, torch.lerp, torch.linalg.vector_norm, torch.log1p, torch.masked_fill,
            torch.matmul, torch.max, torch.maximum, torch.mean, torch.mm, torch.movedim, torch.mul, torch.mv,
            torch.nansum, torch.norm, torch.permute, torch.pow, torch.prod, torch.relu, torch.relu_, torch.reshape,
            torch.rsub, torch.special.expit, torch.special.xlog1py, torch.split, torch.squeeze, torch.stack,
            torch.std_mean, torch.sum, torch.swapaxes, torch.t, torch.true_divide, torch.unbind, torch.var,
            torch.where, F.elu, F.gelu, F.hardtanh, F.linear, F.mse_loss, F.relu, F.softplus, F.threshold,
            torch.Tensor.add_, torch.Tensor.view, torch.Tensor.type_as, torch.Tensor.__rpow__, torch.Tensor.__rsub__,
            torch.Tensor.__rmatmul__, torch.Tensor.__getitem__, operator.add, operator.iadd, operator.matmul,
            operator.imatmul, operator.invert, operator.getitem, operator.floordiv,
        ],
    )  # fmt: skip
    def test_what_users_write_is_known(self, function: Any) -> None:
        assert binding_of(function) is not None


@pytest.mark.parametrize("name", ["sub", "truediv", "floordiv", "mod", "pow", "matmul", "lshift"])
def test_spellings_with_exchanged_operands(name: str) -> None:
    dtype = torch.int64 if name == "lshift" else torch.float64
    x, y = poisoned([[1, None], [2, 3]], dtype), torch.tensor([[5, 2], [4, 7]], dtype=dtype)
    result = getattr(torch.Tensor, f"__r{name}__")(y, x)  # x - y
    assert_entries(result, getattr(operator, f"__{name}__")(x, y).tolist())


class TestRefusals:
    @pytest.mark.parametrize(
        ("call", "name"),
        [
            (torch.svd, "torch.svd"),
            (torch.linalg.inv, "inv"),
            (torch.fft.fft, "fft"),
            (lambda x: x.svd(), "svd"),
        ],
    )
    def test_what_has_no_meaning_is_refused_by_its_public_name(self, call: Any, name: str) -> None:
        with pytest.raises(mg.MaskgradError, match=name) as caught:
            call(poisoned([X, X, X]))
        assert isinstance(caught.value, TypeError)
        assert "filled(" in str(caught.value)

    @pytest.mark.parametrize(
        ("call", "name"),
        [
            (
                lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, False),
                "torch.quantize_per_tensor_dynamic",
            ),
        ],
    )
    def test_what_nobody_has_described_yet(self, call: Any, name: str) -> None:
        with pytest.raises(
            mg.UnsupportedOperationError, match=rf"^{name} does not support MaskedTensor"
        ) as caught:
            call(poisoned(X))
        assert caught.value.operation == name
        assert "x.filled(value) or x.compressed()" in str(caught.value)

    def test_writing_into_a_plain_tensor_names_the_ways(self) -> None:
        x = poisoned(X)
        with pytest.raises(
            mg.UnsupportedOperationError, match=r"^torch\.Tensor\.__setitem__ does not .*y = mg\.masked\(y\)"
        ):
            torch.zeros(3)[0] = x[0]
        y = mg.masked(torch.zeros(len(X)))
        y[0] = x[0]
        assert y.mask[0] == x.mask[0]

    @pytest.mark.parametrize("name", ["q_scale", "untyped_storage", "set_"])
    def test_a_method_of_tensor_that_is_not_supported(self, name: str) -> None:
        x = poisoned(X)
        assert not hasattr(x, name)
        with pytest.raises(
            mg.UnsupportedOperationError, match=rf"^torch.Tensor.{name} does not support"
        ) as caught:
            getattr(x, name)
        assert isinstance(caught.value, AttributeError)

    def test_a_name_that_no_tensor_has(self) -> None:
        with pytest.raises(AttributeError, match="MaskedTensor has no attribute 'no_such_name'"):
            poisoned(X).no_such_name
        assert not hasattr(poisoned(X), "__no_such_protocol__")

    @pytest.mark.parametrize(
        "write", [lambda p, x: p.add_(x), lambda p, x: p.mul_(x), lambda p, x: torch.add(x, 1, out=p)]
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

    def test_python_does_not_rebind_a_plain_name(self) -> None:
        plain = before = torch.ones(3, dtype=torch.float64)
        with pytest.raises(RuntimeError, match="cannot write a masked result into a plain tensor"):
            plain += poisoned(X)
        assert plain is before
        assert before.tolist() == [1.0] * 3


class TestInPlace:
    @pytest.mark.parametrize(
        ("write", "expected"),
        [
            (lambda x: x.add_(1), [2.0, None, 5.0]),
            (lambda x: x.mul_(poisoned([None, 2.0, 2.0])), [None, None, 8.0]),
            (lambda x: x.sqrt_(), [1.0, None, 2.0]),
            (torch.neg_, [-1.0, None, -4.0]),
            (lambda x: x.clamp_(max=2), [1.0, None, 2.0]),
            (lambda x: x.masked_fill_(on(0, 1, 1), 7.0), [1.0, 7.0, 7.0]),
            (lambda x: F.relu(x - 2, inplace=True), [0.0, None, 2.0]),
            (lambda x: torch.add(torch.ones(3), 1, out=x), [2.0, 2.0, 2.0]),
            (lambda x: torch.mul(x, 2, out=x), [2.0, None, 8.0]),
        ],
    )
    def test_values_and_pattern_are_written(self, write: Any, expected: Any) -> None:
        x = poisoned(X)
        result = write(x)
        assert_entries(result, expected, dtype=torch.float64)

    def test_the_target_is_returned_and_views_and_data_see_it(self) -> None:
        data = torch.tensor([1.0, nan, 4.0])
        x = mg.masked(data, on(1, 0, 1))
        alias, view = mg.masked(x, on(1, 1, 1)), x[:2]
        assert x.add_(1) is x
        assert_entries(x, [2.0, None, 5.0])
        assert_entries(alias, [2.0, None, 5.0])
        assert_entries(view, [2.0, None])
        assert data.nan_to_num().tolist() == [2.0, 0.0, 5.0]

    @pytest.mark.parametrize(
        ("operation", "operand", "expected"),
        [
            (operator.iadd, 1, [2.0, None, 5.0]),
            (operator.isub, 1, [0.0, None, 3.0]),
            (operator.imul, poisoned([2.0, 2.0, None]), [2.0, None, None]),
            (operator.itruediv, torch.tensor([2.0, 0.0, 0.0]), [0.5, None, inf]),
            (operator.ifloordiv, 2, [0.0, None, 2.0]),
            (operator.imod, 3, [1.0, None, 1.0]),
            (operator.ipow, 2, [1.0, None, 16.0]),
        ],
    )
    def test_augmented_assignment(self, operation: Any, operand: Any, expected: Any) -> None:
        x = y = poisoned(X)
        x = operation(x, operand)
        assert x is y
        assert_entries(x, expected, dtype=torch.float64)

    def test_augmented_matrix_product(self) -> None:
        x = poisoned([[1.0, None], [None, 4.0]])
        x @= poisoned([[None, 1.0], [2.0, 1.0]])
        assert_entries(x, [[None, 1.0], [8.0, 4.0]])

    def test_bitwise(self) -> None:
        x = poisoned([True, None, False], torch.bool)
        x |= on(0, 0, 1)
        assert_entries(x, [True, None, True])
        x ^= True
        assert_entries(x, [False, None, False])

    def test_a_leaf_is_protected(self) -> None:
        x = poisoned(X, requires_grad=True)
        for write in (lambda: x.add_(1), lambda: torch.neg(x, out=x), lambda: x.__setitem__(0, 1.0)):
            with pytest.raises(RuntimeError, match="a leaf MaskedTensor that requires grad"):
                write()
        with torch.no_grad():
            x += 1
        assert_entries(x, [2.0, None, 5.0])

    def test_gradients_flow_through(self) -> None:
        x = poisoned(X, requires_grad=True)
        y = x * 3
        y *= x
        assert gradient(y, x).tolist() == [6.0, 0.0, 24.0]

    def test_the_target_keeps_its_shape(self) -> None:
        with pytest.raises(RuntimeError, match=r"the result has shape \(2, 3\), the target \(3,\)"):
            poisoned(X).add_(torch.ones(2, 3))

    @pytest.mark.parametrize(
        ("dtype", "write"),
        [
            (torch.int64, lambda x: x.add_(0.5)),
            (torch.int64, lambda x: x.div_(2)),
            (torch.bool, lambda x: x.add_(1)),
            (torch.float32, lambda x: x.mul_(1j)),
        ],
    )
    def test_the_target_keeps_its_kind_of_dtype(self, dtype: torch.dtype, write: Any) -> None:
        with pytest.raises(RuntimeError, match=r"can't be cast|cannot be cast"):
            write(torch.ones(2, dtype=dtype))
        with pytest.raises(RuntimeError, match=f"cannot be cast to {dtype}"):
            write(poisoned([True, None] if dtype == torch.bool else [1, None], dtype))

    def test_the_target_keeps_its_dtype(self) -> None:
        assert_entries(poisoned(X, torch.float16).add_(poisoned(X)), [2.0, None, 8.0], dtype=torch.float16)
        assert_entries(poisoned([1, None], torch.int32).mul_(2), [2, None], dtype=torch.int32)
        assert_entries(poisoned([1.0, None]).eq_(1), [1.0, None], dtype=torch.float64)

    @pytest.mark.parametrize(
        ("module", "expected"),
        [
            (nn.ReLU, [0.0, None, 4.0]),
            (nn.LeakyReLU, [-0.01, None, 4.0]),
            (lambda inplace: nn.Threshold(2.0, 5.0, inplace=inplace), [5.0, None, 4.0]),
            (nn.Hardtanh, [-1.0, None, 1.0]),
            (nn.ReLU6, [0.0, None, 4.0]),
            (nn.Hardsigmoid, [1 / 3, None, 1.0]),
            (nn.ELU, [-0.6321206, None, 4.0]),
        ],
    )
    def test_modules_that_write_in_place(self, module: Any, expected: Any) -> None:
        data = leaf(-1.0, nan, 4.0)
        x = mg.masked(data, on(1, 0, 1)) * 1
        y = module(inplace=True)(x)
        assert y is x
        assert_entries(y, expected)
        assert gradient(y, data)[1] == 0.0
        assert_entries(module(inplace=False)(mg.masked(data, on(1, 0, 1))), expected)

    def test_results_that_come_in_pairs_have_no_out(self) -> None:
        with pytest.raises(TypeError, match="out"):
            torch.max(poisoned(X), 0, out=(torch.zeros(()), torch.zeros((), dtype=torch.int64)))
