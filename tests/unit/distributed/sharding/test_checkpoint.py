"""What some ranks have written, any number of ranks can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import maskgrad as mg
from maskgrad.distributed import ShardedEmbedding, ShardedEmbeddingBag, load_checkpoint, save_checkpoint
from tests.ranks import run_on_ranks


class Model(torch.nn.Module):
    def __init__(self, world_size: int, rows: int = 11) -> None:
        super().__init__()
        self.block = ShardedEmbedding(rows, 3)
        self.cyclic = ShardedEmbedding(rows, 3, placement="cyclic")
        self.lonely = ShardedEmbeddingBag(6, 3, mode="sum", placement=world_size - 1)
        self.dense = torch.nn.Linear(3, 1)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.dense(
            self.block(index) + self.cyclic(index) + self.lonely(index[:, None] % 6)
        )
        return found


def make(world_size: int, state: str, rows: int = 11) -> tuple[Model, Any]:
    model = Model(world_size, rows)
    tables = [p for p in model.parameters() if mg.distributed.is_sharded(p)]
    others = [p for p in model.parameters() if not mg.distributed.is_sharded(p)]
    groups = [{"params": tables, "lr": 0.2}, {"params": others}]
    options: Any = {"unspecified": "zero", "state": state}
    if state == "counts":
        options = {"bias_correction": "row"}
    return model, mg.optim.Adam(groups, lr=0.1, weight_decay=0.01, **options)


def step(model: Model, optimizer: Any, rank: int, world_size: int, seed: int) -> None:
    index = torch.randint(11, (8,), generator=torch.Generator().manual_seed(seed)).chunk(world_size)[rank]
    optimizer.zero_grad()
    model(index).square().mean().backward()
    for param in model.dense.parameters():
        if world_size > 1:
            torch.distributed.all_reduce(param.grad)
            param.grad /= world_size  # type: ignore[operator]
    optimizer.step()


def write(rank: int, world_size: int, folder: str, state: str) -> None:
    torch.manual_seed(3)
    model, optimizer = make(world_size, state)
    for seed in range(3):
        step(model, optimizer, rank, world_size, seed)
    save_checkpoint(folder, model, optimizer)


def read(rank: int, world_size: int, folder: str, state: str) -> list[Any]:
    """All values after reading and one more step."""
    torch.manual_seed(4)
    model, optimizer = make(world_size, state)
    if state == "row":  # one that has states already
        step(model, optimizer, rank, world_size, 9)
        optimizer.param_groups[0]["lr"] = 77.0
    load_checkpoint(folder, model, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.2
    step(model, optimizer, rank, world_size, 3)
    optimizer.flush()
    return [
        *(table.full_weight() for table in (model.block, model.cyclic, model.lonely)),
        *(param.detach() for param in model.dense.parameters()),
    ]


def test_on_another_number_of_ranks_training_goes_on(tmp_path: Path) -> None:
    torch.manual_seed(3)
    values: dict[str, list[Any]] = {}
    for state in ("full", "row", "counts"):
        model, optimizer = make(1, state)
        for seed in range(4):
            step(model, optimizer, 0, 1, seed)
        torch.manual_seed(3)
        optimizer.flush()
        values[state] = [p.detach().clone() for p in model.parameters()]
        values[state][1] = model.cyclic.full_weight()
    for writers, readers, state in (
        (1, 2, "full"),
        (2, 4, "row"),
        (4, 2, "full"),
        (2, 1, "row"),
        (2, 4, "counts"),
        (2, 1, "counts"),
    ):
        folder = str(tmp_path / f"{writers}-{readers}-{state}")
        if writers == 1:
            write(0, 1, folder, state)
        else:
            run_on_ranks(write, writers, folder, state)
        answers = [read(0, 1, folder, state)] if readers == 1 else run_on_ranks(read, readers, folder, state)
        for found in answers:
            for value, expected in zip(found, values[state], strict=True):
                torch.testing.assert_close(value, expected)


def test_a_parameter_without_a_state_has_none_afterwards(tmp_path: Path) -> None:
    """PyTorch's own functions make states to load into, and then miss them in the file."""
    for options in ({}, {"bias_correction": "row"}):
        folder = str(tmp_path / str(len(options)))
        models = [torch.nn.ModuleDict({name: torch.nn.Linear(2, 2) for name in "ab"}) for _ in range(2)]
        written, loaded = (mg.optim.AdamW(model.parameters(), **options) for model in models)  # type: ignore[arg-type]
        models[0]["a"](torch.ones(1, 2)).sum().backward()
        written.step()
        save_checkpoint(folder, models[0], written)
        load_checkpoint(folder, models[1], loaded)
        assert [*loaded.state] == [*models[1]["a"].parameters()]
        for name, value in written.state[models[0]["a"].weight].items():
            assert torch.equal(loaded.state[models[1]["a"].weight][name], value)


def test_another_model_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    model, optimizer = make(1, "full")
    step(model, optimizer, 0, 1, 0)
    for _ in range(2):  # the second time over the first
        save_checkpoint(tmp_path, model, optimizer)
    other, its_optimizer = make(1, "full", rows=12)
    before = [p.detach().clone() for p in other.parameters()]
    with pytest.raises(
        ValueError, match=r"model.block.weight has shape \(11, 3\) in the checkpoint, \(12, 3\) here"
    ):
        load_checkpoint(tmp_path, other, its_optimizer)
    with pytest.raises(ValueError, match=r"the checkpoint has no model\.0\.weight"):
        load_checkpoint(tmp_path, torch.nn.Sequential(ShardedEmbedding(11, 3)))
    assert all(torch.equal(p, q) for p, q in zip(other.parameters(), before, strict=True))
    with pytest.raises(
        ValueError, match=r"parameter 0 of group 0 of the optimizer is not a parameter of the model"
    ):
        save_checkpoint(tmp_path, model, its_optimizer)
    alone = mg.optim.Adam(model.block.parameters())
    with pytest.raises(ValueError, match=r"state has the parameters .* by group, the optimizer has"):
        mg.distributed.load_optimizer_state_dict(
            model, alone, mg.distributed.optimizer_state_dict(model, optimizer)
        )


def plain_table(rank: int, world_size: int, folder: str) -> Any:
    """A checkpoint of a block table is one of torch.nn.Embedding, in both directions."""
    from torch.distributed import checkpoint

    table = ShardedEmbedding(7, 2)
    checkpoint.save({"model": table.state_dict()}, checkpoint_id=f"{folder}/sharded")
    plain = torch.nn.Embedding(7, 2)
    parts = {"model": plain.state_dict()}
    checkpoint.load(parts, checkpoint_id=f"{folder}/sharded")
    assert torch.equal(plain.weight, table.full_weight())
    checkpoint.save({"model": {"weight": plain.weight.detach() + 1}}, checkpoint_id=f"{folder}/plain")
    load_checkpoint(f"{folder}/plain", table)
    assert torch.equal(plain.weight + 1, table.full_weight())


def test_checkpoints_are_exchanged_with_plain_tables(tmp_path: Path) -> None:
    run_on_ranks(plain_table, 2, str(tmp_path))
