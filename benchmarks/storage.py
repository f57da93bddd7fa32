"""Sparse layouts: operations on stored entries beside torch.sparse, SciPy, bare values and dense tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from benchmarks.measure import Peers, measure

GRID, SCALARS = 4000, 500_000
ENTRIES = 1_000_000
LAYOUTS = {"COO": torch.sparse_coo, "CSR": torch.sparse_csr}
Row = dict[str, Any]


def run(progress: Callable[[str], None] = print) -> list[Row]:
    """Every case of this file, one row for each peer; ``progress`` is told what is being measured."""
    torch.manual_seed(0)
    progress(f"merging {SCALARS} entries")
    rows = _merging(progress)
    for side in (100_000, 4096):
        matrix = _matrix(side, ENTRIES)
        progress(f"elementwise, {side}x{side}")
        rows += _elementwise(matrix)
        for name, layout in LAYOUTS.items():
            progress(f"reductions, {side}x{side} {name}")
            rows += _rows_of(matrix, mg.from_sparse(matrix).to_sparse(layout), name)
    progress("one entry in a hundred")
    return rows + _thin(_matrix(4096, 4096 * 4096 // 100))


def _matrix(side: int, entries: int) -> Tensor:
    """A merged COO matrix with about so many entries at random places."""
    keys = torch.unique(torch.randint(side * side, (entries,)))
    places = torch.stack([keys // side, keys % side])
    values = torch.randn(len(keys))
    return torch.sparse_coo_tensor(places, values, (side, side), is_coalesced=True, check_invariants=False)


def _merging(progress: Callable[[str], None]) -> list[Row]:
    indices, values = torch.randint(GRID, (2, SCALARS)), torch.randn(SCALARS)

    def unmerged() -> Tensor:
        return torch.sparse_coo_tensor(indices, values, (GRID, GRID), check_invariants=False)

    def torch_coalesce() -> Tensor:
        return unmerged().coalesce()

    peers: dict[str, Callable[[], Any]] = {
        "maskgrad": lambda: mg.sparse.coalesce(unmerged()),
        "torch coalesce": torch_coalesce,
    }
    goals = {"torch coalesce": (">=", 3.0)}
    try:
        from scipy.sparse import coo_matrix
    except ImportError as error:
        progress(f"without SciPy: {error}")
    else:
        at, numbers = (indices[0].numpy(), indices[1].numpy()), values.numpy()
        peers["SciPy, COO to CSR"] = lambda: coo_matrix((numbers, at), (GRID, GRID)).tocsr()
        goals["SciPy, COO to CSR"] = (">=", 1.0)

    def check(ours: Tensor, theirs: Any) -> None:
        plain = theirs if isinstance(theirs, Tensor) else torch.from_numpy(theirs.toarray())
        torch.testing.assert_close(ours.to_dense(), plain.to_dense())

    return _measured(f"{SCALARS} entries merged into {GRID}x{GRID}", peers, goals, check)


def _elementwise(matrix: Tensor) -> list[Row]:
    x = mg.from_sparse(matrix.to_sparse_csr())
    values = matrix.values()
    rows = []
    for name, operation in {"exp(a)": torch.exp, "a * a": lambda a: a * a}.items():
        rows += _measured(
            f"{name}, {_described(matrix)} CSR",
            {"maskgrad": lambda f=operation: f(x), "bare values": lambda f=operation: f(values)},
            {"bare values": (">=", 1 / 1.2)},
            lambda ours, theirs: torch.testing.assert_close(ours.to_sparse_tensor().values(), theirs),
        )
    return rows


def _rows_of(matrix: Tensor, x: Any, layout: str) -> list[Row]:
    """Reductions along rows and columns: with what the pattern remembers, and of a pattern never seen before."""
    csr = matrix.to_sparse_csr()
    where = f"{_described(matrix)} {layout}"
    rows = []
    for dim in (1, 0):
        line = matrix.indices()[1 - dim]
        counts = torch.bincount(line, minlength=matrix.shape[1 - dim])

        def mean_of_fresh(dim: int = dim) -> Any:
            pattern = x._pattern.rebuilt(x._pattern.tensors())
            return mg.MaskedTensor(x._values, pattern).mean(dim)

        def check_mean(ours: Any, theirs: Any, counts: Tensor = counts) -> None:
            if isinstance(theirs, mg.MaskedTensor):
                theirs = theirs.filled(0.0) * counts
            plain = theirs.to_dense().reshape(-1)
            torch.testing.assert_close(ours.filled(0.0) * counts, plain, rtol=1e-4, atol=1e-4)

        peers: dict[str, Callable[[], Any]] = {
            "maskgrad": lambda dim=dim: x.mean(dim),
            "maskgrad, the first time": mean_of_fresh,
            "torch.sparse.sum of COO": lambda dim=dim: torch.sparse.sum(matrix, dim),
        }
        if dim == 1:
            peers["torch.sum of CSR"] = lambda: torch.sum(csr, 1, keepdim=True)
        goals = {name: (">=", 5.0) for name in peers if name.startswith("torch")} if dim == 1 else {}
        rows += _measured(f"mean({dim}), {where}", peers, goals, check_mean)

        def check_softmax(ours: Any, theirs: Tensor) -> None:
            torch.testing.assert_close(ours.compressed(), theirs.coalesce().values())

        rows += _measured(
            f"softmax({dim}), {where}",
            {
                "maskgrad": lambda dim=dim: x.softmax(dim),
                "torch.sparse.softmax": lambda dim=dim: torch.sparse.softmax(matrix, dim),
            },
            {"torch.sparse.softmax": (">=", 5)} if dim == 1 else {},
            check_softmax,
        )
    return rows


def _thin(matrix: Tensor) -> list[Row]:
    """Storing one entry in a hundred beside storing all of them with a mask."""
    rows = []
    plain = matrix.to_dense()
    mask = torch.zeros_like(plain, dtype=torch.bool).index_put(tuple(matrix.indices()), torch.tensor(True))
    dense = mg.masked(plain, mask)
    for layout, x in {name: dense.to_sparse(kind) for name, kind in LAYOUTS.items()}.items():
        peers: dict[str, dict[str, Callable[[], Any]]] = {
            "mean(1)": {
                "maskgrad": lambda x=x: x.mean(1),
                "maskgrad, Boolean mask": lambda: dense.mean(1),
                "torch.masked": lambda: torch.masked.mean(plain, 1, mask=mask),
            },
            "softmax(1)": {
                "maskgrad": lambda x=x: x.softmax(1),
                "maskgrad, Boolean mask": lambda: dense.softmax(1),
                "torch.masked": lambda: torch.masked.softmax(plain, 1, mask=mask),
            },
        }
        for name, calls in peers.items():
            rows += _measured(
                f"{name}, {_described(matrix)} {layout}",
                calls,
                {"maskgrad, Boolean mask": (">=", 20), "torch.masked": (">=", 20)},
                _check_dense,
                rounds=7,
            )
    return rows


def _check_dense(ours: Any, theirs: Any) -> None:
    found = ours.to_dense()
    if isinstance(theirs, mg.MaskedTensor):
        theirs = theirs.filled(0.0)
    torch.testing.assert_close(found.filled(0.0), torch.where(found.mask, theirs, 0), rtol=1e-4, atol=1e-6)


def _described(matrix: Tensor) -> str:
    return f"{matrix._nnz()} entries of {'x'.join(map(str, matrix.shape))}"


def _measured(
    case: str,
    peers: Peers,
    goals: dict[str, tuple[str, float]],
    check: Callable[[Any, Any], None],
    rounds: int = 15,
) -> list[Row]:
    return measure("storage", case, peers, goals=goals, check=check, rounds=rounds)
