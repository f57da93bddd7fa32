"""Operations on stored entries, beside PyTorch's sparse tensors, bare values, and a Boolean mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from benchmarks.agreement import agree
from benchmarks.case import OURS, Case, Comparison, Implementation
from benchmarks.plan import Family, Point

__all__ = ["FAMILY", "random_matrix"]

NAME = "storage"
LAYOUTS = {"COO": torch.sparse_coo, "CSR": torch.sparse_csr}
#: a matrix too wide for its places to be stored, and one of which some entries in a hundred are
WIDE, SQUARE = 100_000, 4096
THIN = 0.01
_ELEMENTWISE: dict[str, Callable[[Any], Any]] = {"exp(a)": torch.exp, "a * a": lambda a: a * a}


def random_matrix(side: int, entries: int) -> Tensor:
    """A merged COO matrix with about so many entries, at random places."""
    generator = torch.Generator().manual_seed(8)
    keys = torch.unique(torch.randint(side * side, (entries,), generator=generator))
    places = torch.stack([keys // side, keys % side])
    values = torch.randn(len(keys), generator=generator)
    return torch.sparse_coo_tensor(places, values, (side, side), is_coalesced=True, check_invariants=False)


def _cases(point: Point) -> Iterator[Case]:
    for side in (WIDE, SQUARE) if point.in_full else (WIDE,):
        for name in _ELEMENTWISE if point.in_full else ():
            yield _elementwise(point, side, name)
        for layout in LAYOUTS if point.in_full else ("CSR",):
            for dim in (1, 0) if point.in_full else (1,):
                yield _mean(point, side, layout, dim)
                yield _softmax(point, side, layout, dim)
    if point.in_full:
        for layout in LAYOUTS:
            for name in ("mean", "softmax"):
                yield _thin(point, layout, name)


def _case(
    point: Point,
    operation: str,
    side: int,
    note: str,
    prepare: Callable[[], Comparison],
    thin: float | None = None,
) -> Case:
    entries = "" if thin else f"{point.size} entries, "
    return Case(NAME, operation, "forward", (side, side), thin, point.dtype, prepare, f"{entries}{note}")


def _elementwise(point: Point, side: int, name: str) -> Case:
    operation = _ELEMENTWISE[name]

    def prepare() -> Comparison:
        matrix = random_matrix(side, point.size)
        x, values = mg.from_sparse(matrix.to_sparse_csr()), matrix.values()
        expected = operation(values.double())
        return Comparison(
            {
                OURS: lambda: Implementation(
                    lambda: operation(x), lambda found: found.to_sparse_tensor().values()
                ),
                "bare-values": lambda: Implementation(lambda: operation(values), read=None),
            },
            verify=lambda found: agree(found, expected),
        )

    return _case(point, name, side, "CSR", prepare)


def _mean(point: Point, side: int, layout: str, dim: int) -> Case:
    def prepare() -> Comparison:
        matrix = random_matrix(side, point.size)
        csr, line = matrix.to_sparse_csr(), matrix.indices()[1 - dim]
        stored = csr if layout == "CSR" else matrix
        x = mg.from_sparse(stored)
        counts = torch.bincount(line, minlength=side)
        sums = torch.zeros(side, dtype=torch.float64).index_add_(0, line, matrix.values().double())

        def read_mean(found: Any) -> Tensor:
            mean: Tensor = found.filled(0.0) * counts
            return mean

        def read_sum(found: Tensor) -> Tensor:
            return found.to_dense().reshape(-1)

        contenders: dict[str, Callable[[], Implementation]] = {
            OURS: lambda: Implementation(lambda: x.mean(dim), read_mean),
            # nothing is remembered of the pattern, and its indices are checked
            "maskgrad, from torch's tensor": lambda: Implementation(
                lambda: mg.from_sparse(stored).mean(dim), read_mean
            ),
            "torch.sparse": lambda: Implementation(lambda: torch.sparse.sum(matrix, dim), read_sum),
        }
        if dim == 1:
            contenders["torch.sparse-csr"] = lambda: Implementation(
                lambda: torch.sum(csr, 1, keepdim=True), read_sum
            )
        return Comparison(contenders, verify=lambda found: agree(found, sums), agree=agree)

    return _case(point, f"mean({dim})", side, layout, prepare)


def _softmax(point: Point, side: int, layout: str, dim: int) -> Case:
    def prepare() -> Comparison:
        matrix = random_matrix(side, point.size)
        x = mg.from_sparse(matrix.to_sparse_csr() if layout == "CSR" else matrix)
        line = matrix.indices()[1 - dim]
        powers = matrix.values().double().exp()
        totals = torch.zeros(side, dtype=torch.float64).index_add_(0, line, powers)
        expected = powers / totals[line]
        return Comparison(
            {
                OURS: lambda: Implementation(lambda: x.softmax(dim), lambda found: found.compressed()),
                "torch.sparse": lambda: Implementation(
                    lambda: torch.sparse.softmax(matrix, dim), lambda found: found.coalesce().values()
                ),
            },
            verify=lambda found: agree(found, expected),
            agree=agree,
        )

    return _case(point, f"softmax({dim})", side, layout, prepare)


def _thin(point: Point, layout: str, name: str) -> Case:
    """Storing one entry in a hundred, beside storing all of them with a mask."""

    def prepare() -> Comparison:
        side = SQUARE if point.size > SQUARE else 256
        matrix = random_matrix(side, int(side * side * THIN))
        plain = matrix.to_dense()
        mask = torch.zeros(side, side, dtype=torch.bool)
        mask[tuple(matrix.indices())] = True
        boolean = mg.masked(plain, mask)
        x = boolean.to_sparse(LAYOUTS[layout])
        theirs = getattr(torch.masked, name)
        there = mask.any(1) if name == "mean" else mask
        expected = torch.where(mask, plain.double(), float("-inf")).softmax(1)
        if name == "mean":
            expected = torch.where(mask, plain.double(), 0).sum(1) / mask.sum(1)
        expected = torch.where(there, expected, 0)

        def read(found: Any) -> Tensor:
            filled = found.to_dense().filled(0.0) if isinstance(found, mg.MaskedTensor) else found
            return torch.where(there, filled, 0)

        return Comparison(
            {
                OURS: lambda: Implementation(lambda: getattr(x, name)(1), read),
                "maskgrad, Boolean mask": lambda: Implementation(lambda: getattr(boolean, name)(1), read),
                "torch.masked": lambda: Implementation(lambda: theirs(plain, 1, mask=mask), read),
            },
            verify=lambda found: agree(found, expected),
            agree=agree,
        )

    side = SQUARE if point.size > SQUARE else 256
    return _case(point, f"{name}(1)", side, f"one in a hundred, {layout}", prepare, thin=THIN)


FAMILY = Family(
    NAME,
    "operations that cost what is stored, on COO and CSR",
    size_is="stored entries",
    cases=_cases,
    sizes=(1_000_000, 100_000),
    quick_size=4_000,
)
