"""Rows that wait for their updates, and what else is counted in Python, wait as before after an examination."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import StepLR

import maskgrad as mg
from maskgrad.optim.lazy.rows import lazy_rows_of

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "closed form": lambda p: mg.optim.SGD(p, lr=0.1, momentum=0.9, unspecified="zero"),
    "moments": lambda p: mg.optim.AdamW(p, lr=0.1, unspecified="zero"),
    "replayed": lambda p: mg.optim.Adam(p, lr=0.1, weight_decay=0.1, unspecified="zero"),
}
BATCH = {
    "ids": torch.tensor([[1, 2, 0], [3, 0, 0]]),
    "mask": torch.tensor([[True, True, False], [True, False, False]]),
}


class _Training:
    """A table of which some rows are behind, its optimizer and a schedule."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        torch.default_generator.manual_seed(0)
        self.table = mg.nn.Embedding(9, 2, sparse=True)
        self.optimizer = make(self.table.parameters())
        self.schedule = StepLR(self.optimizer, 2)
        for ids in ([1, 4], [2, 4], [5, 6]):
            self.train({"ids": torch.tensor([ids]), "mask": torch.ones(1, 2, dtype=torch.bool)})

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return mg.masked(self.table(batch["ids"]).square().sum(-1), batch["mask"]).mean()  # type: ignore[no-any-return]

    def train(self, batch: dict[str, Tensor]) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
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
        assert lazy is not None
        assert lazy._had is not None
        found = {"weight": weight.detach().clone(), "had": lazy._had.clone(), "steps": len(lazy)}
        found |= {"mine": lazy.version == weight._version, "in time": lazy.is_read_in_time}
        found |= {
            f"state {name}": torch.as_tensor(value).clone()
            for name, value in self.optimizer.state[weight].items()
        }
        return found | {"schedule": self.schedule.state_dict()}

    def later(self) -> dict[str, Any]:
        """What comes of some more steps."""
        for ids in ([1, 3], [7, 2]):
            self.train({"ids": torch.tensor([ids]), "mask": torch.ones(1, 2, dtype=torch.bool)})
        self.optimizer.flush()
        return self.kept()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("step", ["loss", "train", "saved", "failing"])
def test_an_examination_leaves_rows_behind_that_were_behind(optimizer: str, step: str) -> None:
    examined, left_alone = _Training(OPTIMIZERS[optimizer]), _Training(OPTIMIZERS[optimizer])
    assert int((left_alone.kept()["had"] != left_alone.kept()["steps"]).sum()) > 2
    try:
        mg.doctor.examine(getattr(examined, step), BATCH, padding={"ids": "mask"})
    except ArithmeticError:
        assert step == "failing"
    _assert_equal(examined.kept(), left_alone.kept())
    _assert_equal(examined.later(), left_alone.later())


def _assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(found[name], value, rtol=0, atol=0, msg=name)
        else:
            assert found[name] == value, name


@pytest.mark.parametrize("dense", [False, True])
def test_a_dense_gradient_for_a_row_that_was_behind_is_warned_of(dense: bool) -> None:
    table = torch.nn.Embedding(4, 2, sparse=not dense)
    optimizer = OPTIMIZERS["moments"](table.parameters())
    for rows, late in ([0, 1], False), ([1, 2], True):
        table.weight.grad = torch.sparse_coo_tensor(torch.tensor([rows]), torch.ones(2, 2), (4, 2))
        if late and dense:
            table.weight.grad = table.weight.grad.to_dense()
        optimizer.flush() if not late else None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        assert ["read before their pending updates" in str(warning.message) for warning in caught] == [
            True
        ] * late


def test_a_dense_gradient_that_reaches_rows_up_to_date_alone_is_no_reason_to_warn() -> None:
    table = torch.nn.Embedding(4, 2)
    optimizer = OPTIMIZERS["moments"](table.parameters())
    table.weight.grad = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.ones(2, 2), (4, 2))
    optimizer.step()
    table.weight.grad = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
