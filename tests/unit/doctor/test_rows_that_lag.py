"""Rows that wait for their updates, and what else is counted in Python, wait as before after an examination."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import StepLR

import maskgrad as mg
from maskgrad.optim.lazy.rows import lazy_rows_of
from maskgrad.optim.lazy.zero_gradients import RowsReadLate

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "closed form": lambda p: mg.optim.SGD(p, lr=0.1, momentum=0.9, unspecified="zero"),
    "moments": lambda p: mg.optim.AdamW(p, lr=0.1, unspecified="zero"),
}
BATCH = torch.tensor([[1, 2, 0], [3, 0, 0]])


class _Training:
    """A table of which some rows are behind, its optimizer and a schedule."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        torch.default_generator.manual_seed(0)
        self.table = mg.nn.Embedding(9, 2, sparse=True)
        self.optimizer = make(self.table.parameters())
        self.schedule = StepLR(self.optimizer, 2)
        self.several([1, 4], [2, 4], [5, 6])

    def several(self, *rows: list[int]) -> None:
        for ids in rows:
            self.train({"ids": torch.tensor([ids])})

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        ids = batch["ids"]
        return mg.masked(self.table(ids).square().sum(-1), ids != 0).mean()

    def train(self, batch: dict[str, Tensor]) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def saved(self, batch: dict[str, Tensor]) -> Tensor:
        loss = self.loss(batch)
        self.optimizer.state_dict()
        return loss

    def failing(self, batch: dict[str, Tensor]) -> Tensor:
        self.train(batch)
        raise ArithmeticError

    def kept(self) -> dict[str, Any]:
        """All that is there, without bringing anything up to date."""
        weight = self.table.weight
        lazy = lazy_rows_of(weight)
        found = {"weight": weight.detach(), "had": lazy._had, "steps": len(lazy)}
        found |= {"mine": lazy.version == weight._version, "in time": lazy.is_read_in_time}
        found |= {f"state {name}": value for name, value in self.optimizer.state[weight].items()}
        return copy.deepcopy(found | {"schedule": self.schedule.state_dict()})


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("step", ["loss", "train", "saved", "failing"])
def test_an_examination_leaves_rows_behind_that_were_behind(optimizer: str, step: str) -> None:
    examined, left_alone = _Training(OPTIMIZERS[optimizer]), _Training(OPTIMIZERS[optimizer])
    assert int((left_alone.kept()["had"] != left_alone.kept()["steps"]).sum()) > 2
    try:
        mg.doctor.examine(getattr(examined, step), {"ids": BATCH}, padding={"ids": 0})
    except ArithmeticError:
        assert step == "failing"
    torch.testing.assert_close(examined.kept(), left_alone.kept(), rtol=0, atol=0)
    for each in (examined, left_alone):  # and what comes of some more steps
        each.several([1, 3], [7, 2])
        each.optimizer.flush()
    torch.testing.assert_close(examined.kept(), left_alone.kept(), rtol=0, atol=0)


def test_only_a_dense_gradient_for_a_row_that_was_behind_is_warned_of() -> None:
    table = torch.nn.Embedding(4, 2)
    optimizer = OPTIMIZERS["moments"](table.parameters())
    for reached, late in ([0, 1], False), ([1, 2], True):
        table.weight.grad = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2, 2), (4, 2))
        optimizer.step()
        table.weight.grad = torch.zeros(4, 2).index_fill(0, torch.tensor(reached), 1.0)
        with pytest.warns(RowsReadLate) if late else contextlib.nullcontext():
            optimizer.step()
