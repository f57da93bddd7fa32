"""The oracle of all kernels: each group of specified entries, and its derivative, as PyTorch computes it alone.

It does so in double precision. Where groups are too many to be looked at one by one, the kernel's reference in double
precision stands in for the oracle, which it has been compared with.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from maskgrad import kernels
from maskgrad.kernels import KERNELS, use_kernels

__all__ = ["DTYPES", "GARBAGE", "Deletion", "Where", "about", "run"]

GARBAGE = (math.nan, math.inf, -math.inf, 1e38)
ROUNDING = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
Where = tuple[Any, ...]


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


def on_cpu(x: Any) -> Any:
    return x.cpu() if isinstance(x, Tensor) else x


class Deletion:
    """What a kernel declares; how entries lie is for the classes between.

    Attributes:
        kernel: the name in :mod:`maskgrad.kernels`.
        variants: what follows operands and place in a call, each a tuple; every test meets all of them.
        per_entry: whether the first result has a value for each entry, not for each group.
        rounding: relative tolerance by dtype, ten times that absolute; of gradients ``slack`` times as much.
        integers: dtypes that are reduced in int64, or exactly.
        widens: halves give float32.
        complex: whether the reference takes complex numbers.
        derivable: whether the first result has a derivative.
        nans: whether NaN is among what is drawn.
        traced: whether no NaN may arise on the way back, though it is thrown away.
    """

    kernel: ClassVar[str]
    variants: ClassVar[Sequence[tuple[Any, ...]]] = ((),)
    per_entry: ClassVar[bool] = False
    rounding: ClassVar[dict[torch.dtype, float]] = ROUNDING
    slack: ClassVar[float] = 4.0
    integers: ClassVar[Sequence[torch.dtype]] = ()
    widens: ClassVar[bool] = False
    complex: ClassVar[bool] = False
    derivable: ClassVar[bool] = True
    nans: ClassVar[bool] = False
    traced: ClassVar[bool] = True

    def alone(self, *entries_and_variant: Any) -> Tensor | tuple[Tensor, ...]:
        """What PyTorch gives for the entries of one group: vectors, one of each operand; then the variant."""
        raise NotImplementedError

    def operands(self, shape: tuple[int, ...], where: Where, variant: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """What derivatives are taken by, of any float dtype; the first has ``shape``, the others broadcast to it."""
        return (torch.randn(shape),)

    def whole_numbers(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """What is reduced of :attr:`integers`."""
        return torch.randint(0, 2 if dtype == torch.bool else 4, shape).to(dtype)

    def smooth(self, shape: tuple[int, ...], where: Where, variant: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Operands about which finite differences can be taken."""
        return self.operands(shape, where, variant)

    def nothing(self, dtype: torch.dtype, *variant: Any) -> tuple[float, ...]:
        """What results are where nothing is specified; 0 beyond the last one named."""
        return (0.0,)

    def call(self, operands: Sequence[Tensor], where: Where, variant: tuple[Any, ...]) -> Any:
        function = KERNELS[self.kernel] if self.kernel in KERNELS else getattr(kernels, self.kernel)
        return function(*operands, *where, *variant)

    def beside(self, where: Where) -> tuple[Tensor, ...]:
        """More vectors for :meth:`alone`, one number for each entry, without a derivative."""
        return ()

    def special(self) -> list[list[float]]:
        """Rows whose values and gradients surface as in PyTorch: by default infinities and NaN, zeros and ties."""
        inf, nan = math.inf, math.nan
        return [
            [nan, 1, 2, 3],
            [inf, 1, 2, -3],
            [-inf, 1, 2, 3],
            [0, 0, 0, 0],
            [2, -2, 1, 2],
            [inf, -inf, 1, 1],
        ]

    def is_refused(self, shape: tuple[int, ...], where: Where, variant: tuple[Any, ...]) -> bool:
        """Whether PyTorch has no result, because a dimension is empty."""
        return False

    def result_dtype(self, dtype: torch.dtype) -> torch.dtype:
        if dtype in self.integers:
            return torch.int64
        return torch.promote_types(dtype, torch.float32) if self.widens else dtype

    # How entries lie: ``groups``, ``many``, ``tables``, ``strided``, ``large``, ``few``, ``rows`` and ``drawn`` of the
    # two classes between.

    def soiled(self, operands: Sequence[Tensor], where: Where, garbage: float) -> list[Tensor]:
        return list(operands)

    # The machinery.

    def outcome(
        self,
        body: str,
        operands: Sequence[Tensor],
        where: Where,
        variant: tuple[Any, ...],
        garbage: float = 0.5,
        lay: Callable[[Tensor], Tensor] = torch.Tensor.contiguous,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Results and gradients of one body; the gradient that comes is laid out so, garbage where nothing is known."""
        real = self.derivable and operands[0].is_floating_point()
        leaves = [x.detach().requires_grad_(real) for x in operands]
        with use_kernels(body):
            found = self.call(leaves, where, variant)
            first, *rest = found if isinstance(found, tuple) else (found,)
            slopes: Sequence[Tensor] = ()
            if real:
                index, sizes, _ = self.groups(where, operands[0].shape)
                there = torch.ones(first.shape, dtype=torch.bool)
                if self.per_entry:
                    there = torch.zeros(operands[0].numel(), dtype=torch.bool)
                    there[index] = True
                elif first.numel():
                    there = torch.tensor(sizes) > 0
                # in float64: on a GPU a number that overflows is an error, not inf
                weight = torch.where(there.reshape(first.shape), self.weight(first).double(), garbage)
                slopes = torch.autograd.grad(
                    first, leaves, lay(weight.to(first.dtype)), allow_unused=True, materialize_grads=True
                )
        return [first.detach(), *rest], list(slopes)

    def weight(self, like: Tensor) -> Tensor:
        return torch.arange(like.numel(), dtype=torch.float64).cos().add(0.1).view(like.shape).to(like.dtype)

    def expected(
        self, operands: Sequence[Tensor], where: Where, variant: tuple[Any, ...]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The same by deletion, on the CPU."""
        with torch.device("cpu"):
            return self._deleted([x.cpu() for x in operands], tree_map(on_cpu, where), variant)

    def _deleted(
        self, operands: Sequence[Tensor], where: Where, variant: tuple[Any, ...]
    ) -> tuple[list[Tensor], list[Tensor]]:
        full = operands[0].shape
        index, sizes, shape = self.groups(where, full)
        wide = torch.complex128 if operands[0].is_complex() else torch.float64
        leaves = [x.detach().to(wide).requires_grad_() for x in operands]
        parts = [x.expand(full).reshape(-1)[index] for x in (*leaves, *self.beside(where))]
        nothing = [torch.tensor(x, dtype=wide) for x in self.nothing(operands[0].dtype, *variant)]
        columns: list[list[Tensor]] = []
        for entries in zip(*(x.split(sizes) for x in parts), strict=True):
            made = self.alone(*entries, *variant) if entries[0].numel() else nothing
            columns.append(list(made) if isinstance(made, (tuple, list)) else [made])
        number = max(map(len, columns), default=1)
        results = []
        for k in range(number):
            column = [x[k] if k < len(x) else torch.zeros((), dtype=wide) for x in columns]
            if k or not self.per_entry:
                results.append((torch.stack(column) if column else torch.zeros(0, dtype=wide)).reshape(shape))
            else:
                kept = [x for x, size in zip(column, sizes, strict=True) if size]
                whole = torch.full((math.prod(full),), nothing[0].item(), dtype=wide)
                results.append(
                    whole.index_put((index,), torch.cat(kept)).view(full) if kept else whole.view(full)
                )
        first = results[0]
        slopes = [torch.zeros_like(x) for x in leaves]
        if self.derivable and first.requires_grad and wide == torch.float64:
            weight = self.weight(first.to(self.result_dtype(operands[0].dtype))).double()
            slopes = list(
                torch.autograd.grad(first, leaves, weight, allow_unused=True, materialize_grads=True)
            )
        return [x.detach() for x in results], slopes

    def compare(
        self,
        found: tuple[list[Tensor], list[Tensor]],
        wanted: tuple[list[Tensor], list[Tensor]],
        nan: bool = False,
    ) -> None:
        for mine, theirs, slack in zip(found, wanted, (1.0, self.slack), strict=True):
            for x, y in zip(mine, theirs, strict=False):
                assert x.shape == y.shape
                tolerance = self.rounding.get(x.dtype, 0) * slack
                wide = torch.complex128 if y.is_complex() else torch.float64
                exact = y.to(x.dtype) if x.is_floating_point() else y  # may overflow there
                torch.testing.assert_close(
                    x.cpu().to(wide), exact.cpu().to(wide), rtol=tolerance, atol=tolerance * 10, equal_nan=nan
                )

    def examine(
        self,
        body: str,
        operands: Sequence[Tensor],
        where: Where,
        variant: tuple[Any, ...],
        garbage: Sequence[float],
    ) -> None:
        """One body against deletion, for each kind of garbage; no gradient reaches what is not specified."""
        wanted = self.expected(operands, where, variant)
        index, _, _ = self.groups(where, operands[0].shape)
        outside = torch.ones(operands[0].numel(), dtype=torch.bool).index_fill(0, index, False)
        for kind in garbage:
            with about(kind):
                given = self.soiled(operands, where, kind)
                before = [x.clone() for x in given]
                found = self.outcome(body, given, where, variant, kind)
                assert found[0][0].dtype == self.result_dtype(given[0].dtype)
                assert [x.dtype for x in found[1]] == [x.dtype for x in given[: len(found[1])]]
                if found[1]:
                    assert not found[1][0].reshape(-1)[outside].count_nonzero()
                self.compare(found, wanted)
                for x, y in zip(given, before, strict=True):
                    torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)

    def agree(
        self,
        body: str,
        operands: Sequence[Tensor],
        where: Where,
        variant: tuple[Any, ...],
        garbage: float = math.nan,
        lay: Callable[[Tensor], Tensor] = torch.Tensor.contiguous,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """One body against the reference in double precision."""
        found = self.outcome(body, operands, where, variant, garbage, lay)
        wide = [x.double() for x in operands]
        self.compare(found, self.outcome("reference", wide, where, variant, garbage, lay), self.nans)
        return found

    def by_torch(self, operands: Sequence[Tensor], where: Where, variant: tuple[Any, ...]) -> bool:
        """Whether functions of PyTorch do a part of it, whose bits depend on the number of threads."""
        return False

    def first(self, operands: Sequence[Tensor], where: Where, variant: tuple[Any, ...]) -> Tensor:
        found = self.call(operands, where, variant)
        return found[0] if isinstance(found, tuple) else found  # type: ignore[no-any-return]
