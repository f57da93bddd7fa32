"""A table on several ranks is torch.nn.Embedding in one process, on the joint batch."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.distributed import ShardedEmbedding
from tests.ranks import run_on_ranks

ROWS, COLUMNS = 23, 3


def batches(world_size: int) -> list[Tensor]:
    """Indices of each rank: other shapes, one of them empty, many that occur twice."""
    made = [torch.randint(ROWS, (4 + rank, 2)) for rank in range(world_size)]
    made[-1] = made[-1][:0]
    return made


def cotangents(indices: Tensor, dtype: torch.dtype) -> Tensor:
    """Numbers of a few bits, so that no order of additions can be told from another."""
    return torch.randint(-3, 4, (*indices.shape, COLUMNS)).to(dtype)


def of_rank(table: ShardedEmbedding, dense: Tensor) -> Tensor:
    """The rows of a whole table that lie here; zero where the grid has none."""
    own = table.placement.own_rows()
    return torch.where((own >= 0)[:, None], dense[own.clamp_min(0)], 0)


def as_in_one_process(rank: int, world_size: int, placement: Any, dtype: torch.dtype) -> None:
    whole = torch.randn(ROWS, COLUMNS).to(dtype)
    whole[5] = float("nan")  # a row that nobody asks for
    joint = [torch.where(batch == 5, 6, batch) for batch in batches(world_size)]
    steps = [cotangents(batch, dtype) for batch in joint]
    options: dict[str, Any] = {"freeze": False, "padding_idx": 2}
    table = ShardedEmbedding.from_pretrained(whole, **options, placement=placement, gradients="sum")
    found = table(joint[rank].int() if rank % 2 else joint[rank])
    assert found.dtype is dtype
    assert torch.equal(found, whole[joint[rank]])
    found.backward(steps[rank])
    grad = table.weight.grad
    assert grad is not None
    assert grad.is_sparse
    assert grad.dtype is (torch.float32 if dtype.itemsize == 2 else dtype)  # halves are gathered in float32
    touched = grad._indices()[0]
    assert bool((touched[1:] > touched[:-1]).all())  # each row once
    everything, all_steps = torch.cat(joint).view(-1), torch.cat(steps).view(-1, COLUMNS)
    dense = torch.zeros(ROWS, COLUMNS, dtype=all_steps.dtype).index_add(0, everything, all_steps)
    asked = torch.zeros(ROWS, 1).index_fill(0, everything, 1.0)
    dense[2] = asked[2] = 0
    expected, stored = of_rank(table, dense), of_rank(table, asked).view(-1).bool()
    assert torch.equal(torch.zeros(len(expected), dtype=torch.bool).index_fill(0, touched, True), stored)
    assert torch.equal(grad.to_dense().to(dtype), expected)
    known = torch.arange(ROWS) != 5
    assert torch.equal(table.full_weight()[known], whole[known])


def every_dtype(rank: int, world_size: int) -> None:
    for placement in ("block", "cyclic", world_size - 1):
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64):
            as_in_one_process(rank, world_size, placement, dtype)


@pytest.mark.parametrize("world_size", [2, 4])
def test_values_and_gradients_are_those_of_one_process(world_size: int) -> None:
    run_on_ranks(every_dtype, world_size)


def test_one_process_needs_no_group() -> None:
    every_dtype(0, 1)


def halves(rank: int, world_size: int) -> Any:
    table = ShardedEmbedding.from_pretrained(
        torch.zeros(3, 1, dtype=torch.float16), freeze=False, gradients="average"
    )
    # 2,049 ones are 2,048 where halves are added up; 40,000 + 40,000 is infinite.
    index = torch.cat([torch.zeros(2049, dtype=torch.int64), torch.ones(1, dtype=torch.int64)])
    step = torch.cat([torch.ones(2049, 1), torch.full((1, 1), 40000.0)]).half()
    table(index).backward(step)
    return table.weight.grad.to_dense().tolist()  # type: ignore[union-attr]


def test_halves_are_added_up_in_float32_over_indices_and_ranks() -> None:
    assert run_on_ranks(halves, 2) == [[[2048.0], [40000.0]], [[0.0]]]


def first_values(rank: int, world_size: int) -> Any:
    torch.manual_seed(17 + 100 * rank)  # rank 0 decides
    tables = [
        ShardedEmbedding(9001, 2, padding_idx=-1),
        ShardedEmbedding(9001, 2, padding_idx=-1, placement="cyclic", dtype=torch.float64),
        ShardedEmbedding(5, 2, init=lambda rows, generator: rows.uniform_(3, 4, generator=generator)),
        ShardedEmbedding(5000, 1, placement=world_size - 1),
    ]
    tables[3].reset_parameters()
    return [table.full_weight().tolist() for table in tables]


def test_first_values_do_not_depend_on_the_number_of_ranks() -> None:
    torch.manual_seed(17)
    block, cyclic, uniform, lonely = alone = first_values(0, 1)
    for found in (*run_on_ranks(first_values, 2), *run_on_ranks(first_values, 4)):
        assert found == alone
    for values in (block, cyclic):
        drawn = torch.tensor(values[:-1])
        assert drawn.mean().abs() < 0.03
        assert abs(drawn.std() - 1) < 0.03
        assert len(drawn.unique()) > 17_900  # blocks have numbers of their own
        assert values[-1] == [0.0, 0.0]
    assert all(3 <= value < 4 for row in uniform for value in row)
    assert len(lonely) == 5000


def masked_indices(rank: int, world_size: int) -> None:
    whole = torch.randn(ROWS, COLUMNS)
    mask = torch.tensor([True, False, True]) if rank else torch.tensor([False] * 3)
    table = ShardedEmbedding.from_pretrained(whole, freeze=False, gradients="sum")
    found = table(mg.masked(torch.tensor([3, 10**12, 22]), mask))
    assert torch.equal(found.mask, mask[:, None].expand(3, COLUMNS))
    assert torch.equal(found.filled(0.0), torch.where(mask[:, None], whole[[3, 0, 22]], 0.0))
    found.sum().backward()
    dense = torch.zeros(ROWS, COLUMNS).index_fill(0, torch.tensor([3, 22]), 1.0)
    grad = table.weight.grad
    assert grad is not None
    assert grad._nnz() == 1
    assert torch.equal(grad.to_dense(), of_rank(table, dense))


def norms_are_limited(rank: int, world_size: int) -> None:
    whole = torch.arange(1.0, 13.0).view(6, 2)
    for placement in ("block", "cyclic"):
        table = ShardedEmbedding.from_pretrained(whole, max_norm=3.0, norm_type=1.0, placement=placement)  # type: ignore[arg-type]
        one = torch.nn.Embedding.from_pretrained(whole.clone(), max_norm=3.0, norm_type=1.0)
        index = torch.tensor([0, 4, 4]) if rank else torch.tensor([4, 1])
        one(torch.tensor([0, 4, 1]))
        torch.testing.assert_close(table(index), one(index))
        torch.testing.assert_close(table.full_weight(), one.weight.data)
        assert not table.weight.requires_grad


def copies_live_on_the_same_ranks(rank: int, world_size: int) -> None:
    table = ShardedEmbedding(4, 2)
    index = torch.tensor([0, 3])
    for again in (copy.deepcopy(table), pickle.loads(pickle.dumps(table)), copy.deepcopy(table).double()):
        assert torch.equal(again(index).float(), table(index))
        assert mg.distributed.is_sharded(again.weight)


def whole_state_dicts(rank: int, world_size: int) -> None:
    whole = torch.randn(11, 2)
    for placement in ("block", "cyclic", 0):
        table = ShardedEmbedding(11, 2, placement=placement)  # type: ignore[arg-type]
        table.load_state_dict({"weight": whole} if placement != 0 or rank == 0 else {})
        assert torch.equal(table.full_weight(), whole)
        again = ShardedEmbedding(11, 2, placement=placement)  # type: ignore[arg-type]
        again.load_state_dict(table.state_dict())
        assert torch.equal(again.full_weight(), whole)
        with pytest.raises(RuntimeError, match=r"weight has shape \(10, 2\); this table has 11 rows of 2"):
            ShardedEmbedding(11, 2).load_state_dict({"weight": whole[:10]})


def several_programs(rank: int, world_size: int) -> None:
    for program in (
        masked_indices,
        norms_are_limited,
        copies_live_on_the_same_ranks,
        whole_state_dicts,
        all_to_all_is_missing,
    ):
        program(rank, world_size)


def all_to_all_is_missing(rank: int, world_size: int) -> None:
    def absent(*_: Any, **__: Any) -> None:
        raise RuntimeError("Backend gloo does not support alltoall_base")

    present = torch.distributed.all_to_all_single
    torch.distributed.all_to_all_single = absent
    try:
        for dtype in (torch.float32, torch.bfloat16):
            as_in_one_process(rank, world_size, "block", dtype)
    finally:
        torch.distributed.all_to_all_single = present


def test_masks_norms_copies_and_state_dicts_on_ranks() -> None:
    run_on_ranks(several_programs, 2)


def test_in_one_process_too() -> None:
    norms_are_limited(0, 1)
    copies_live_on_the_same_ranks(0, 1)
    whole_state_dicts(0, 1)


def test_a_table_is_made_without_memory_and_filled_later() -> None:
    torch.manual_seed(5)
    expected = ShardedEmbedding(7, 2, padding_idx=3)
    table = ShardedEmbedding(7, 2, padding_idx=3, device="meta").to_empty(device="cpu")
    torch.manual_seed(5)
    table.reset_parameters()
    assert torch.equal(table.weight, expected.weight)
    assert mg.distributed.is_sharded(table.weight)
    again = ShardedEmbedding(7, 2, device="meta")
    again.load_state_dict(table.state_dict(), assign=True)
    assert torch.equal(again.weight, expected.weight)
    assert mg.distributed.is_sharded(again.weight)


@pytest.mark.parametrize("kind", ["embedding", "bag"])
def test_a_compiled_model_looks_up_between_its_graphs(kind: str) -> None:
    whole = torch.randn(7, 2)
    table: Any = ShardedEmbedding.from_pretrained(whole, freeze=False)
    if kind == "bag":
        table = mg.distributed.ShardedEmbeddingBag.from_pretrained(whole, freeze=False)
    model = torch.nn.Sequential(table, torch.nn.Linear(2, 1))
    index = torch.tensor([[0, 6], [3, 3]])
    compiled = torch.compile(model, backend="eager")
    assert torch.equal(compiled(index), model(index))
    compiled(index).sum().backward()
    assert table.weight.grad._nnz() == 3


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    whole, index = torch.randn(ROWS, COLUMNS), torch.randint(ROWS, (50,))
    for placement in ("block", "cyclic"):
        tables = [
            ShardedEmbedding.from_pretrained(whole, freeze=False, placement=placement, device=device)  # type: ignore[arg-type]
            for device in ("cpu", "cuda")
        ]
        for table in tables:
            optimizer = mg.optim.Adam(table.parameters(), lr=0.1, unspecified="zero")
            for _ in range(3):
                optimizer.zero_grad()
                table(index.to(table.weight.device)).square().sum().backward()
                optimizer.step()
        torch.testing.assert_close(tables[1].full_weight().cpu(), tables[0].full_weight())


def test_a_second_derivative_of_the_table_is_refused() -> None:
    table = ShardedEmbedding(3, 2)
    found = table(torch.tensor([1])).square().sum()
    (grad,) = torch.autograd.grad(found, table.weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.to_dense().sum().backward()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"sparse": False},
            ValueError,
            "sparse=False is not available for a sharded table.*omit sparse",
        ),
        (
            {"scale_grad_by_freq": True},
            ValueError,
            "scale_grad_by_freq=True is not available for a sharded table",
        ),
        ({"gradients": "mean"}, ValueError, 'gradients must be "average" or "sum".*got \'mean\''),
        ({"padding_idx": 4}, ValueError, "padding_idx must be one of the 4 rows; got 4"),
        ({"placement": 1}, ValueError, "placement is rank 1, but the ranks are 0 to 0"),
        ({"dtype": torch.int64}, TypeError, "dtype must be floating-point or complex"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ShardedEmbedding(4, 2, **options)


def test_shapes_and_devices_of_torch() -> None:
    assert ShardedEmbedding(4, 2, device="meta").weight.is_meta
    assert ShardedEmbedding(0, 2)(torch.empty(3, 0, dtype=torch.int64)).shape == (3, 0, 2)
    assert ShardedEmbedding(3, 0)(torch.tensor(1)).shape == (0,)
    with pytest.raises(ValueError, match=r"embeddings must have two dimensions.*got shape \(4,\)"):
        ShardedEmbedding.from_pretrained(torch.ones(4))
    assert "rank 0 of 1 has 4 rows" in repr(ShardedEmbedding(4, 2))
