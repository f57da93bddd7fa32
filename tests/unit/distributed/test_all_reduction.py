"""Tensors of every kind added up over two and four ranks, against dense sums and unions of masks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import maskgrad as mg
from tests.ranks import run_on_ranks
from tests.unit.distributed.kinds_of_gradients import (
    KINDS,
    Meaning,
    fix_the_way,
    gradient,
    kind_of,
    meaning_of,
)

PRESENT = [kind for kind in KINDS if kind != "none"]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]


def _reduced(rank: int, world_size: int, cases: list[tuple[Any, ...]]) -> list[Any]:
    found = []
    for kinds, dtype, op, way in cases:
        x, _ = gradient(kinds[rank], rank, dtype)
        with pytest.MonkeyPatch.context() as patch:
            fix_the_way(patch, way)
            result = mg.distributed.all_reduce(x, op)
        read = meaning_of(result)
        assert read is not None
        found.append((kind_of(result), result.dtype, *(part.tolist() for part in read)))
    return found


def _expected(kinds: tuple[str, ...], dtype: torch.dtype, op: str) -> Meaning:
    meanings = [gradient(kind, rank, dtype)[1] for rank, kind in enumerate(kinds)]
    total = torch.stack([m.values for m in meanings]).sum(0)
    count = torch.stack([m.mask for m in meanings]).sum(0)
    divisor = {"sum": 1, "avg": len(kinds)}[op]
    return Meaning((total / divisor).to(dtype), count > 0)


def _expected_kind(kinds: tuple[str, ...]) -> str:
    """A sum is as sparse as its operands allow, and masked if it specifies no more than they do."""
    if {"dense", "transposed"} & {*kinds}:
        return "strided"
    masks = [kind for kind in kinds if kind.startswith(("mask", "nothing"))]
    if not masks:
        return "sparse_coo"
    return "masked strided" if {"mask", "nothing specified"} & {*masks} else "masked sparse_coo"


def _check(world_size: int, cases: list[tuple[Any, ...]]) -> None:
    answers = run_on_ranks(_reduced, world_size, cases)
    for answer in answers[1:]:
        assert answer == answers[0]  # bit for bit
    for (kinds, dtype, op, *_), (kind, found_dtype, values, mask) in zip(cases, answers[0], strict=True):
        expected = _expected(kinds, dtype, op)
        assert kind == _expected_kind(kinds), kinds
        assert found_dtype is dtype
        assert torch.equal(torch.tensor(mask, dtype=torch.bool).reshape(6, 4), expected.mask), kinds
        assert torch.equal(torch.tensor(values, dtype=dtype).reshape(6, 4), expected.values), (kinds, op)


@pytest.mark.parametrize("way", ["fewer bytes", "whole", "lists"])
def test_every_pair_of_kinds(way: str) -> None:
    ops = itertools.cycle(["sum", "avg"])
    _check(2, [(pair, torch.float32, next(ops), way) for pair in itertools.product(PRESENT, repeat=2)])


def test_every_dtype_and_op() -> None:
    kinds = [("dense", "rows"), ("rows", "rows"), ("mask", "rows"), ("csr", "csr"), ("dense", "dense")]
    _check(2, [*itertools.product(kinds, DTYPES, ["sum", "avg"], ["whole", "lists"])])


def test_four_ranks_one_of_which_has_most() -> None:
    few = ("empty rows", "rows", "empty rows", "empty rows")
    cases = [(few, torch.float32, "sum", "lists"), (few, torch.float16, "avg", "lists")]
    cases += [(("csr", "csr", "csr", "csr"), torch.float64, "avg", way) for way in ("whole", "lists")]
    cases += [(("mask", "nothing specified", "rows", "masked bsr"), torch.bfloat16, "avg", "fewer bytes")]
    _check(4, cases)


def _integers(rank: int, world_size: int) -> list[Any]:
    reduce = mg.distributed.all_reduce
    made = [
        torch.tensor([250, 1], dtype=torch.uint8),
        torch.tensor([100, -100], dtype=torch.int16),
        torch.tensor([True, rank == 0]),
        torch.tensor([1 + 2j, 3j]).conj(),
        torch.tensor(7),
        torch.zeros(0, 3),
        torch.zeros(3, 0).to_sparse_coo(),
        torch.sparse_coo_tensor(torch.zeros(0, 2, dtype=torch.int64), [1, 2], (), check_invariants=True),
    ]
    results = [reduce(x) for x in made]
    assert made[4].item() == 7  # left as it is
    return [(r.dtype, r.shape, r.to_dense().tolist()) for r in results]


def test_integers_and_odd_sizes() -> None:
    for answer in run_on_ranks(_integers, 2):
        assert answer == [
            (torch.uint8, (2,), [244, 2]),
            (torch.int16, (2,), [200, -200]),
            (torch.int64, (2,), [2, 1]),
            (torch.complex64, (2,), [2 - 4j, -6j]),
            (torch.int64, (), 14),
            (torch.float32, (0, 3), []),
            (torch.float32, (3, 0), [[], [], []]),
            (torch.int64, (), 6),
        ]


def _bytes_sent(rank: int, world_size: int, rows: list[int], height: int) -> dict[str, int]:
    """What is given to each collective that carries entries, when each rank has so many rows of a table."""
    sizes = {"all_gather": 0, "all_reduce": 0}

    def counting(name: str, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            tensor = args[1] if name == "all_gather" else args[0]
            sizes[name] += tensor.numel() * tensor.element_size() * (tensor.dtype is not torch.int64)
            return original(*args, **kwargs)

        return call

    at = torch.arange(rows[rank])[None]
    x = torch.sparse_coo_tensor(at, torch.ones(rows[rank], 8), (height, 8), check_invariants=True)
    with pytest.MonkeyPatch.context() as patch:
        for name in sizes:
            patch.setattr(torch.distributed, name, counting(name, getattr(torch.distributed, name)))
        total = mg.distributed.all_reduce(x)
    assert total.is_sparse
    assert total.values().sum() == sum(rows) * 8
    return sizes


def test_few_rows_travel_as_rows_and_many_as_a_whole() -> None:
    # three int32 numbers, filled up to 16 bytes, and three rows
    few = {"all_gather": 16 + 3 * 32, "all_reduce": 0}
    assert run_on_ranks(_bytes_sent, 2, [3, 0], 1000) == [few] * 2
    many = {"all_gather": 0, "all_reduce": 100 * 8 * 4 + 100 * 4}
    assert run_on_ranks(_bytes_sent, 4, [90] * 4, 100) == [many] * 4


def _refusals(rank: int, world_size: int, name: str) -> tuple[str, str]:
    reduce = mg.distributed.all_reduce
    broken = torch.sparse_coo_tensor([[9]], [1.0], (3,), check_invariants=False)
    good: torch.Tensor = torch.ones(3).to_sparse()
    bad: dict[str, Any] = {
        "index": lambda: reduce(broken if rank else good),
        "kind": lambda: reduce([1.0] if rank else good),
        "shape": lambda: reduce(torch.ones(3 + rank)),
        "dtype": lambda: reduce(torch.ones(3, dtype=torch.float64 if rank else torch.float32)),
        "op": lambda: reduce(good, "max" if rank else "sum"),
        "ops": lambda: reduce(good, "avg" if rank else "sum"),
        "average": lambda: reduce(torch.ones(3, dtype=torch.int64), "avg"),
    }
    try:
        bad[name]()
    except Exception as error:
        found = type(error).__name__, str(error)
    assert reduce(good).to_dense().tolist() == [2.0, 2.0, 2.0]  # the group still works
    return found


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("index", "IndexError", ["rank 1 raised an error", "index 9", "index 9"]),
        ("kind", "TypeError", ["rank 1 raised an error", "found list", "found list"]),
        ("shape", "ValueError", ["the ranks disagree", "(3,)", "(4,)"]),
        ("dtype", "ValueError", ["the ranks disagree", "torch.float32", "torch.float64"]),
        ("op", "ValueError", ["rank 1 raised an error", "'max'", "'max'"]),
        ("ops", "ValueError", ["the ranks disagree", "op='sum'", "op='avg'"]),
        ("average", "TypeError", ["torch.int64", "convert x to a float", "convert x to a float"]),
    ],
)
def test_a_refusal_of_one_rank_is_raised_on_all(name: str, kind: str, words: list[str]) -> None:
    answers = run_on_ranks(_refusals, 2, name)
    assert [answer[0] for answer in answers] == [kind, kind]
    first, second = (answer[1] for answer in answers)
    assert words[0] in first
    assert words[1] in first
    assert words[2] in second


def test_without_a_group_the_error_names_init_process_group() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        mg.distributed.all_reduce(torch.ones(2))


def test_without_torch_distributed_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match="missing in this build of PyTorch"):
        mg.distributed.all_reduce(torch.ones(2))


def _cubes(rank: int, which: str) -> torch.Tensor:
    """Sparse tensors of shape (2, 3, 4), different on each rank."""
    draw = torch.Generator().manual_seed(rank)
    dense = torch.randint(1, 9, (2, 3, 4), generator=draw).float()
    kept = torch.rand(2, 3, 4, generator=draw) < 0.5
    if which == "batched csr":  # two matrices, each with the diagonal, and each rank with another column
        kept = torch.zeros(2, 3, 4, dtype=torch.bool)
        kept[:, torch.arange(3), torch.arange(3)] = True
        kept[rank, 0, 3] = kept[1 - rank, 1, 3] = True
        return torch.where(kept, dense, 0).to_sparse_csr()
    return torch.where(kept, dense, 0).to_sparse(int(which))


def _reduced_cubes(rank: int, world_size: int, pairs: list[tuple[str, str]], way: Any) -> list[Any]:
    found = []
    for pair in pairs:
        with pytest.MonkeyPatch.context() as patch:
            fix_the_way(patch, way)
            total = mg.distributed.all_reduce(_cubes(rank, pair[rank]))
        found.append((total.to_dense().tolist(), str(total.layout), total.is_sparse and total.sparse_dim()))
    return found


@pytest.mark.parametrize("way", ["lists", "whole"])
def test_three_dimensions_of_which_some_are_dense(way: str) -> None:
    pairs = [*itertools.product("123", repeat=2), ("batched csr", "batched csr"), ("batched csr", "1")]
    for answer in run_on_ranks(_reduced_cubes, 2, pairs, way):
        for pair, (values, layout, dimensions) in zip(pairs, answer, strict=True):
            expected = sum(_cubes(rank, which).to_dense() for rank, which in enumerate(pair))
            assert torch.tensor(values).equal(expected), pair
            if "batched csr" in pair:
                assert (layout, dimensions) == ("torch.sparse_coo", 3)
            else:
                assert (layout, dimensions) == ("torch.sparse_coo", int(max(pair)))
