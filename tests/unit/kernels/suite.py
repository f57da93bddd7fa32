"""One suite for compiled loops: they give what the reference gives in double precision, which the laws have checked.

How entries lie is known by the two classes that kernels derive from: ``masks.py`` (a mask, dimensions) and
``segments.py`` (pointers into a list).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.kernels import KERNELS, use_kernels
from maskgrad.kernels.cpu import partition, threads
from maskgrad.kernels.softmax import cpu as softmax

__all__ = ["DTYPES", "GARBAGE", "INTEGERS", "KernelSuite", "Where", "about", "inf", "nan", "run"]

inf, nan = math.inf, math.nan
GARBAGE = (nan, inf, -inf, 1e38)
ROUNDING = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
Where = tuple[Any, ...]
Outcome = tuple[list[Tensor], list[Tensor]]


@contextlib.contextmanager
def about(*what: Any) -> Iterator[None]:
    """Say of a failure which case it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"case: {what}")
        raise


def run(body: str, kernel: str, *args: Any) -> Any:
    """What a kernel gives, by one of its implementations."""
    with use_kernels(body):
        return KERNELS[kernel](*args)


class KernelSuite:
    """Attributes of a kernel's declaration, and the tests.

    kernel: the name in :mod:`maskgrad.kernels`.
    variants: what follows operands and place in a call, each a tuple; every test meets all of them.
    per_entry: whether the first result has a value for each entry, not for each group.
    rounding: relative tolerance by dtype, ten times that absolute; of gradients ``slack`` times as much.
    integers: dtypes that are reduced in int64, or exactly.
    widens: halves give float32.
    by_torch: whether functions of PyTorch do a part of it, whose bits depend on the number of threads.
    special: rows of infinities and NaN, zeros and ties.
    """

    kernel: ClassVar[str]
    variants: ClassVar[Sequence[tuple[Any, ...]]] = ((),)
    per_entry: ClassVar[bool] = False
    layouts: ClassVar[tuple[str, ...]]
    rounding: ClassVar[dict[torch.dtype, float]] = ROUNDING
    slack: ClassVar[float] = 4.0
    integers: ClassVar[Sequence[torch.dtype]] = ()
    widens: ClassVar[bool] = False
    by_torch: ClassVar[bool] = False
    special: ClassVar[Sequence[Sequence[float]]] = (
        *((nan, 1, 2, 3), (inf, 1, 2, -3), (-inf, 1, 2, 3), (inf, -inf, 1, 1), (-inf, -inf, -inf, -inf)),
        *((0, 0, 0, 0), (2, -2, 1, 2)),
    )

    # ``known``, ``soiled``, ``many``, ``tables``, ``strided``, ``large``, ``few``, ``rows`` are of the classes between.

    def operands(self, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        """What derivatives are taken by."""
        return (torch.randn(shape),)

    def call(self, operands: Sequence[Tensor], where: Where, variant: tuple[Any, ...]) -> Any:
        function = KERNELS[self.kernel] if self.kernel in KERNELS else getattr(kernels, self.kernel)
        return function(*operands, *where, *variant)

    def first(self, operands: Sequence[Tensor], where: Where, variant: tuple[Any, ...]) -> Tensor:
        found = self.call(operands, where, variant)
        return found[0] if isinstance(found, tuple) else found  # type: ignore[no-any-return]

    def result_dtype(self, dtype: torch.dtype) -> torch.dtype:
        if dtype in self.integers:
            return torch.int64
        return torch.promote_types(dtype, torch.float32) if self.widens else dtype

    def outcome(
        self, body: str, operands: Sequence[Tensor], where: Where, variant: tuple[Any, ...], garbage: float,
        lay: Callable[[Tensor], Tensor] = torch.Tensor.contiguous,
    ) -> Outcome:  # fmt: skip
        """Results and gradients; the gradient that comes is laid out so, with garbage where nothing is known."""
        leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in operands]
        with use_kernels(body):
            found = self.call(leaves, where, variant)
            first, *rest = found if isinstance(found, tuple) else (found,)
            slopes: Sequence[Tensor] = ()
            if first.requires_grad:
                weight = torch.arange(first.numel(), dtype=torch.float64).cos().add(0.1).view(first.shape)
                weight = torch.where(self.known(where, first), weight.to(first.dtype).double(), garbage)
                slopes = torch.autograd.grad(
                    first, leaves, lay(weight.to(first.dtype)), allow_unused=True, materialize_grads=True
                )
        return [first.detach(), *rest], list(slopes)

    def agree(
        self, operands: Sequence[Tensor], where: Where, variant: tuple[Any, ...], garbage: float = nan,
        lay: Callable[[Tensor], Tensor] = torch.Tensor.contiguous, nans: bool = False,
    ) -> Outcome:  # fmt: skip
        """The loops, amid garbage, against the reference without; no gradient reaches what is not specified."""
        before = [x.clone() for x in operands]
        found = self.outcome("cpu", operands, where, variant, garbage, lay)
        for x, y in zip(operands, before, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
        clean = self.soiled([x.double() for x in operands], where, 0.5)
        wanted = self.outcome("reference", clean, where, variant, garbage, lay)
        assert found[0][0].dtype == self.result_dtype(operands[0].dtype)
        for mine, theirs, slack in zip(found, wanted, (1.0, self.slack), strict=True):
            for x, y in zip(mine, theirs[: len(mine)], strict=True):
                assert x.shape == y.shape
                tolerance = self.rounding.get(x.dtype, 0) * slack
                exact = y.to(x.dtype) if x.is_floating_point() else y  # may overflow there
                torch.testing.assert_close(
                    x.double(), exact.double(), rtol=tolerance, atol=tolerance * 10, equal_nan=nans
                )
        for x, slope in zip(operands, found[1], strict=False):
            assert slope.dtype == x.dtype
            zeroed = self.soiled([slope], where, 0.0)[0]
            torch.testing.assert_close(slope, zeroed, rtol=0, atol=0, equal_nan=True)
        return found

    def __init_subclass__(cls) -> None:
        cls.test_integers = KernelSuite.test_integers if cls.integers else None  # type: ignore[assignment]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "layout" in metafunc.fixturenames:
            metafunc.parametrize("layout", self.layouts)
        if "variant" in metafunc.fixturenames:
            ids = ["-".join(map(str, variant)) or "plain" for variant in self.variants]
            metafunc.parametrize("variant", list(self.variants), ids=ids)

    def test_any_shape_and_dimensions(self, variant: tuple[Any, ...]) -> None:
        for shape, where in self.many():
            with about(shape, where):
                self.agree(
                    self.soiled([x.double() for x in self.operands(shape)], where, nan), where, variant
                )

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_garbage_is_never_read(self, dtype: torch.dtype, variant: tuple[Any, ...]) -> None:
        for shape, where in self.tables():
            for garbage in GARBAGE:
                with about(shape, where[1:], garbage):
                    operands = self.soiled([x.to(dtype) for x in self.operands(shape)], where, garbage)
                    self.agree(operands, where, variant, garbage)

    def test_integers(self, variant: tuple[Any, ...]) -> None:
        for shape, where in self.tables():
            for dtype in self.integers:
                with about(shape, where[1:], dtype):
                    numbers = torch.randint(0, 2 if dtype == torch.bool else 4, shape).to(dtype)
                    self.agree(self.soiled([numbers], where, nan), where, variant)

    def test_any_strides(self, layout: str) -> None:
        for variant in self.variants:
            for shape, lay, where in self.strided(layout):
                with about(shape, where[1:], variant):
                    given = self.soiled(self.operands(shape), where, nan)
                    for chosen in {0, 1}, {0}, {1}:
                        operands = [lay(x) if k in chosen else x for k, x in enumerate(given)]
                        back = lay if self.per_entry else torch.Tensor.contiguous
                        self.agree(operands, where, variant, lay=back)

    def test_pieces_and_threads(self, variant: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        """So little work is given to a thread here that small tensors occupy several; their number changes no bit."""
        for module in (threads, partition):
            monkeypatch.setattr(module, "SERIAL", 1000)
        monkeypatch.setattr(softmax, "PIECE", 1000)
        for shape, where in self.large():
            with about(shape, where[1:]):
                operands = self.soiled(self.operands(shape), where, nan)
                results, slopes = self.agree(operands, where, variant)
                for number in () if self.by_torch else (1, 3):
                    torch.set_num_threads(number)  # conftest.py puts it back
                    again, back = self.outcome("cpu", operands, where, variant, nan)
                    for x, y in zip([*results, *slopes], [*again, *back], strict=True):
                        torch.testing.assert_close(x, y, rtol=0, atol=0)

    def test_first_and_second_derivatives(self, variant: tuple[Any, ...]) -> None:
        for shape, where in self.few():
            leaves = [x.double().requires_grad_() for x in self.operands(shape)]
            with use_kernels("cpu"), about(shape, where):

                def function(*given: Tensor, where: Where = where) -> Tensor:
                    first = self.first(given, where, variant)
                    return torch.where(first.detach().isfinite(), first, 0)

                assert torch.autograd.gradcheck(function, leaves)
                assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)

    def test_gradients_at_once_and_transforms(self, variant: tuple[Any, ...]) -> None:
        shape, where = next(self.few())
        leaves = [x.requires_grad_() for x in self.operands(shape)]
        with use_kernels("cpu"):
            first = self.first(leaves, where, variant)
            grads = torch.randn(3, *first.shape)
            stacked = torch.autograd.grad(first, leaves, grads, is_grads_batched=True, retain_graph=True)
            each = [torch.autograd.grad(first, leaves, grad, retain_graph=True) for grad in grads]
            for together, single in zip(stacked, zip(*each, strict=True), strict=True):
                torch.testing.assert_close(together, torch.stack(single))
            total = torch.func.grad(lambda *xs: (self.first(xs, where, variant) * grads[0]).nansum())
            torch.testing.assert_close(total(*(x.detach() for x in leaves)), each[0][0])

    def test_what_is_not_finite_surfaces(self, variant: tuple[Any, ...]) -> None:
        for values, where in self.rows(torch.tensor(self.special)):
            with about(values.shape, where[1:]):
                others = self.operands(tuple(values.shape))[1:]
                self.agree([values, *others], where, variant, nans=True)
