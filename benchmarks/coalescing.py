"""Merging the duplicate rows of a sparse gradient, beside PyTorch's coalesce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import measure
from maskgrad import kernels

TABLE, WIDTH = 1_000_000, 64
GRID, SCALARS = 3000, 500_000


def run(progress: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """Every case of this file, one row for each peer; ``progress`` is told what is being measured."""
    torch.manual_seed(0)
    rows = []
    for n in (65_536, 262_144):
        patterns = {
            "indices at random": torch.randint(TABLE, (n,)),
            "each twice": torch.randint(TABLE, (n // 2,))[torch.randint(n // 2, (n,))],
            "power law": (TABLE ** torch.rand(n)).long() - 1,
        }
        for pattern, indices in patterns.items():
            progress(f"{n} rows, {pattern}")
            rows += _rows(indices, torch.randn(n, WIDTH), pattern)
    progress(f"{SCALARS} scalars")
    return rows + _scalars(torch.randint(GRID, (2, SCALARS)), torch.randn(SCALARS))


def _coo(indices: Tensor, values: Tensor, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    merged = torch.sparse_coo_tensor(indices, values, size, check_invariants=False).coalesce()
    return merged.indices(), merged.values()


def _rows(indices: Tensor, values: Tensor, pattern: str) -> list[dict[str, Any]]:
    def torch_coalesce() -> tuple[Tensor, Tensor]:
        rows, merged = _coo(indices[None], values, (TABLE, WIDTH))
        return rows[0], merged

    def dense(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
        torch.testing.assert_close(ours[0], theirs[0])
        torch.testing.assert_close(ours[1], theirs[1], rtol=1e-4, atol=1e-4)

    return measure(
        "coalescing",
        f"{len(indices)} rows of {WIDTH} float32 into {TABLE}, {pattern}",
        {"maskgrad": lambda: kernels.merge_rows(indices, values, TABLE), "torch coalesce": torch_coalesce},
        goals={"torch coalesce": (">=", 3)},
        check=dense,
        rounds=15,
    )


def _scalars(indices: Tensor, values: Tensor) -> list[dict[str, Any]]:
    """Entries of a matrix: the two indices become one key and come back as two."""

    def ours() -> tuple[Tensor, Tensor]:
        keys, merged = kernels.merge_rows(indices[0] * GRID + indices[1], values, GRID * GRID)
        row = keys // GRID
        return torch.stack([row, keys - row * GRID]), merged

    return measure(
        "coalescing",
        f"{SCALARS} entries of a {GRID}x{GRID} matrix",
        {"maskgrad": ours, "torch coalesce": lambda: _coo(indices, values, (GRID, GRID))},
        goals={"torch coalesce": (">=", 3)},
        rounds=15,
    )
