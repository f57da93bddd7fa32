"""One suite for all kernels: a class says what its kernel makes of one group of entries, and inherits the tests.

What a kernel declares, and the oracle, stand in ``deletion.py``. How entries lie is known by the two classes that
kernels derive from: ``masks.py`` (a mask, dimensions) and ``segments.py`` (pointers into a list).
"""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from maskgrad.kernels import KERNELS, use_kernels
from maskgrad.kernels.cpu import partition, threads
from maskgrad.kernels.kernel import Kernel
from tests.effort import examples
from tests.unit.kernels.deletion import DTYPES, GARBAGE, Deletion, Where, about

__all__ = ["KernelSuite"]


def turned(x: Tensor) -> Tensor:
    """The same, in memory with the first dimension last."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


class KernelSuite(Deletion):
    """The tests."""

    def __init_subclass__(cls) -> None:
        """Leave out the tests of what a kernel has not."""
        there = {
            "integers": bool(cls.integers),
            "complex_numbers_run_the_reference": cls.complex,
            "first_and_second_derivatives": cls.derivable,
            "gradients_at_once_and_transforms": cls.derivable,
            # a formula has the pieces of PyTorch's functions
            "pieces_and_threads": getattr(KERNELS.get(getattr(cls, "kernel", "")), "has_loops", False),
        }
        for name, is_there in there.items():
            setattr(cls, f"test_{name}", getattr(KernelSuite, f"test_{name}") if is_there else None)

    def calls(self) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
        """Calls of compiled bodies, forward and backward: operator, arguments, keyword arguments."""
        found: dict[Any, tuple[str, tuple[Any, ...], dict[str, Any]]] = {}
        run = Kernel.run

        def record(kernel: Kernel[..., Any], body: str, args: tuple[Any, ...]) -> Any:
            dtypes = tuple(x.dtype for x in args if isinstance(x, Tensor))
            derivable = kernel.backward is not None
            leaves = [
                x.detach().requires_grad_(derivable and x.requires_grad) if isinstance(x, Tensor) else x
                for x in args
            ]
            kinds = [x if isinstance(x, str) else type(x) for x in args]
            found[(kernel.name, dtypes, *kinds)] = (kernel.name, tuple(leaves), {})
            return run(kernel, body, args)

        with use_kernels("cpu"), mock.patch.object(Kernel, "run", record):
            for variant in self.variants:
                for dtype in (torch.float32, torch.float16, *self.integers[-1:]):
                    shape, where = next(self.few())
                    real = self.derivable and dtype.is_floating_point
                    operands = self.operands(shape, where, variant)
                    if dtype == torch.float16 and self.kernel in KERNELS and KERNELS[self.kernel].fake:
                        operands = tuple(map(turned, operands))  # it says how results lie in memory
                    leaves = [x.to(dtype).requires_grad_(real) for x in operands]
                    first = self.first(leaves, where, variant)
                    for again in (False, True) if real else ():
                        weight = torch.randn(first.shape).to(first.dtype).requires_grad_(again)
                        torch.autograd.grad(
                            first, leaves, weight, create_graph=again, retain_graph=True, allow_unused=True
                        )
        return list(found.values())

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "body" in metafunc.fixturenames:
            metafunc.parametrize("body", ["reference", "cpu"])
        if "layout" in metafunc.fixturenames:
            metafunc.parametrize("layout", list(self.strided()))
        if "variant" in metafunc.fixturenames:
            ids = ["-".join(map(str, variant)) or "plain" for variant in self.variants]
            metafunc.parametrize("variant", list(self.variants), ids=ids)

    def test_each_group_is_as_if_alone(self, body: str, variant: tuple[Any, ...]) -> None:
        for shape, where in self.many():
            with about(shape, where):
                operands = [x.double() for x in self.operands(shape, where, variant)]
                if self.is_refused(shape, where, variant):
                    with pytest.raises((IndexError, RuntimeError)):
                        self.outcome(body, operands, where, variant)
                else:
                    self.examine(body, operands, where, variant, [math.nan])

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_garbage_is_never_read(self, body: str, dtype: torch.dtype, variant: tuple[Any, ...]) -> None:
        for shape, where in self.tables():
            with about(shape, where[1:]):
                operands = [x.to(dtype) for x in self.operands(shape, where, variant)]
                self.examine(body, operands, where, variant, GARBAGE)

    def test_integers(self, body: str, variant: tuple[Any, ...]) -> None:
        for shape, where in self.tables():
            for dtype in self.integers:
                with about(shape, where[1:], dtype):
                    self.examine(body, [self.whole_numbers(shape, dtype)], where, variant, [0])

    def test_any_strides(self, layout: str) -> None:
        for variant in self.variants:
            for shape, lay, where in self.strided()[layout]():
                with about(shape, where[1:], variant):
                    given = self.soiled(self.operands(shape, where, variant), where, math.nan)
                    whole = [k for k, x in enumerate(given) if x.shape == shape]
                    for chosen in (whole, *([k] for k in whole if len(whole) > 1)):
                        operands = [lay(x) if k in chosen else x for k, x in enumerate(given)]
                        back = lay if self.per_entry else torch.Tensor.contiguous
                        self.agree("cpu", operands, where, variant, lay=back)

    def test_pieces_and_threads(self, variant: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        """So little work is given to a thread here that small tensors occupy several; their number changes no bit."""
        for module in (threads, partition):
            monkeypatch.setattr(module, "SERIAL", 1000)
        for shape, where in self.large():
            with about(shape, where[1:]):
                operands = self.soiled(self.operands(shape, where, variant), where, math.nan)
                results, slopes = self.agree("cpu", operands, where, variant)
                for number in () if self.by_torch(operands, where, variant) else (1, 3):
                    torch.set_num_threads(number)  # conftest.py puts it back
                    again, back = self.outcome("cpu", operands, where, variant, math.nan)
                    for x, y in zip([*results, *slopes], [*again, *back], strict=True):
                        torch.testing.assert_close(x, y, rtol=0, atol=0)

    @pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
    @settings(max_examples=examples(20), suppress_health_check=[HealthCheck.differing_executors])
    @given(st.data())
    def test_any_problem(self, data: Any) -> None:
        operands, where, variant = self.drawn(data.draw)
        if not self.is_refused(tuple(operands[0].shape), where, variant):
            with torch.autograd.set_detect_anomaly(self.traced, check_nan=True):
                self.agree(
                    "cpu", operands, where, variant, 0.5
                )  # of a NaN that comes in NaN is made on the way

    def test_first_and_second_derivatives(self, variant: tuple[Any, ...]) -> None:
        for shape, where in self.few():
            leaves = [x.double().requires_grad_() for x in self.smooth(shape, where, variant)]
            for body in ("reference", "cpu"):
                with use_kernels(body), about(shape, where, body):

                    def function(*given: Tensor, where: Where = where) -> Tensor:
                        first = self.first(given, where, variant)
                        return torch.where(first.detach().isfinite(), first, 0)

                    assert torch.autograd.gradcheck(function, leaves)
                    assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)

    @pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
    def test_gradients_at_once_and_transforms(self, variant: tuple[Any, ...]) -> None:
        shape, where = next(self.few())
        leaves = [x.requires_grad_() for x in self.operands(shape, where, variant)]
        with use_kernels("cpu"):
            first = self.first(leaves, where, variant)
            grads = torch.randn(3, *first.shape)
            stacked = torch.autograd.grad(first, leaves, grads, is_grads_batched=True, retain_graph=True)
            each = [torch.autograd.grad(first, leaves, grad, retain_graph=True) for grad in grads]
            for together, single in zip(stacked, zip(*each, strict=True), strict=True):
                torch.testing.assert_close(together, torch.stack(single))
            with use_kernels("reference"), torch.autograd.set_detect_anomaly(self.traced, check_nan=True):
                again = torch.autograd.grad(self.first(leaves, where, variant), leaves, grads[0])
            torch.testing.assert_close(again, each[0])
            two = [torch.stack([x.detach(), x.detach().flip(0)]) for x in leaves]
            mapped = torch.vmap(lambda *xs: self.first(xs, where, variant))(*two)
            for k in range(2):
                torch.testing.assert_close(mapped[k], self.first([x[k] for x in two], where, variant))
            total = torch.func.grad(lambda *xs: (self.first(xs, where, variant) * grads[0]).nansum())
            torch.testing.assert_close(total(*(x.detach() for x in leaves)), each[0][0])

    def test_what_is_not_finite_surfaces_as_in_torch(self, body: str, variant: tuple[Any, ...]) -> None:
        for values, where in self.rows(torch.tensor(self.special())):
            operands = list(self.operands(tuple(values.shape), where, variant))
            operands[0] = values
            with about(values.shape, where[1:]):
                found = self.outcome(body, operands, where, variant)
                self.compare(found, self.expected(operands, where, variant), nan=True)

    def test_complex_numbers_run_the_reference(self, variant: tuple[Any, ...]) -> None:
        shape, where = next(self.few())
        x = torch.randn(shape, dtype=torch.complex128)
        with use_kernels("cpu"):
            found = self.first([x], where, variant)
        wanted, _ = self.expected([x], where, variant)
        torch.testing.assert_close(found.to(wanted[0].dtype), wanted[0])

    @pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # opcheck's own
    def test_operators_keep_the_promises_of_their_schemas(self) -> None:
        quick = ("test_schema", "test_autograd_registration", "test_faketensor")
        traced: set[str] = set()
        for name, args, options in self.calls():
            if not KERNELS[name].is_operator:
                continue
            with about(name, args):
                # The last of its tests takes most of the time: once for each operator.
                checks = {"test_utils": quick} if name in traced else {}
                traced.add(name)
                torch.library.opcheck(getattr(torch.ops.maskgrad, name).default, args, options, **checks)
