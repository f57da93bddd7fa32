"""Merging entries that were stored for the same place: rows of a gradient, entries of a matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from benchmarks.agreement import agree
from benchmarks.case import OURS, Case, Comparison, Implementation, LeftOutError
from benchmarks.peers import why_absent
from benchmarks.plan import Family, Point
from benchmarks.samples import random_values

__all__ = ["FAMILY", "repeated"]

NAME = "coalescing"
TABLE, WIDTH = 1_000_000, 64
GRID, SCALARS = 4000, 500_000


def repeated(rows: int, pattern: str) -> Tensor:
    """Rows of the table, in no order: each twice on average, or often and seldom as words are."""
    generator = torch.Generator().manual_seed(5)
    if pattern == "power law":
        return (TABLE ** torch.rand(rows, generator=generator)).long() - 1
    distinct = max(rows // 2, 1)
    some = torch.randint(TABLE, (distinct,), generator=generator)
    return some[torch.randint(distinct, (rows,), generator=generator)]


def _cases(point: Point) -> Iterator[Case]:
    patterns = ("each twice", "power law") if point.in_full else ("each twice",)
    for pattern in patterns:
        yield _rows(point.size, pattern, point.dtype)
    if point.in_full:
        yield _scalars(min(SCALARS, 8 * point.size), point.dtype)


def _rows(rows: int, pattern: str, dtype: str) -> Case:
    def prepare() -> Comparison:
        indices, values = repeated(rows, pattern), random_values((rows, WIDTH), dtype)

        def torch_coalesce() -> Tensor:
            unmerged = torch.sparse_coo_tensor(indices[None], values, (TABLE, WIDTH), check_invariants=False)
            return unmerged.coalesce()

        return Comparison(
            {
                OURS: lambda: Implementation(lambda: mg.sparse.merge_entries(indices, values, (TABLE,))),
                "torch.sparse": lambda: Implementation(
                    torch_coalesce, lambda merged: (merged.indices()[0], merged.values())
                ),
            },
            verify=lambda found: _verify(found, indices, values, dtype),
            agree=lambda ours, theirs: agree(theirs, ours, dtype),
        )

    return Case(
        NAME, "merge rows", "forward", (TABLE, WIDTH), None, dtype, prepare, f"{rows} rows, {pattern}"
    )


def _verify(found: tuple[Tensor, Tensor], indices: Tensor, values: Tensor, dtype: str) -> None:
    at, merged = found
    distinct, place = torch.unique(indices, return_inverse=True)
    torch.testing.assert_close(at, distinct)
    summed = torch.zeros(len(distinct), values.shape[1], dtype=torch.float64)
    summed.index_add_(0, place, values.double())
    agree(merged, summed, dtype)


def _scalars(entries: int, dtype: str) -> Case:
    """Entries of a matrix: two indices for each."""

    def prepare() -> Comparison:
        generator = torch.Generator().manual_seed(6)
        indices = torch.randint(GRID, (2, entries), generator=generator)
        values = random_values((entries,), dtype)

        def unmerged() -> Tensor:
            return torch.sparse_coo_tensor(indices, values, (GRID, GRID), check_invariants=False)

        def verify(found: tuple[Tensor, Tensor]) -> None:
            key = found[0][0] * GRID + found[0][1]
            _verify((key, found[1][:, None]), indices[0] * GRID + indices[1], values[:, None], dtype)

        return Comparison(
            {
                OURS: lambda: Implementation(lambda: mg.sparse.coalesce(unmerged()), _parts),
                "torch.sparse": lambda: Implementation(lambda: unmerged().coalesce(), _parts),
                "scipy": lambda: _scipy(indices, values),
            },
            verify,
            agree=lambda ours, theirs: agree(theirs, ours, dtype),
        )

    return Case(NAME, "merge entries", "forward", (GRID, GRID), None, dtype, prepare, f"{entries} entries")


def _parts(merged: Tensor) -> tuple[Tensor, Tensor]:
    return merged.indices(), merged.values()


def _scipy(indices: Tensor, values: Tensor) -> Implementation:
    if why_absent("scipy"):
        raise LeftOutError(why_absent("scipy"))
    from scipy.sparse import coo_matrix

    at, numbers = (indices[0].numpy(), indices[1].numpy()), values.numpy()

    def read(merged: Any) -> tuple[Tensor, Tensor]:
        merged.sort_indices()
        found = merged.tocoo()
        places = torch.stack([torch.from_numpy(found.row), torch.from_numpy(found.col)]).long()
        return places, torch.from_numpy(found.data)

    return Implementation(lambda: coo_matrix((numbers, at), (GRID, GRID)).tocsr(), read)


FAMILY = Family(
    NAME,
    f"duplicates merged: rows of {WIDTH} numbers in a table of {TABLE:,}, entries of a {GRID} x {GRID} matrix",
    size_is="rows that are merged",
    cases=_cases,
    sizes=(65_536, 4_096, 262_144),
    quick_size=4_096,
    dtypes=("float32",),
)
