from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import maskgrad as mg


def test_a_watch_gives_the_program_its_own_numbers_and_takes_itself_away() -> None:
    layer = nn.Linear(3, 1)
    x, mask = torch.ones(2, 4, 3), torch.arange(4) < torch.tensor([4, 2])[:, None]
    layer(x).mean().backward()
    assert layer.weight.grad is not None
    expected, before = layer.weight.grad.clone(), torch.autograd.backward
    layer.zero_grad()
    with mg.doctor.watch({"x": "mask"}) as watched:
        for batch in DataLoader(
            [{"x": row, "mask": m} for row, m in zip(x, mask, strict=True)], batch_size=2
        ):
            layer(batch["x"]).mean().backward()
    torch.testing.assert_close(layer.weight.grad, expected, rtol=0, atol=0)
    assert torch.autograd.backward is before
    assert watched.report.kinds() == ["padding-leak"]


def test_a_watch_can_stop_when_it_has_seen_enough() -> None:
    layer, steps = nn.Linear(3, 1), 0
    batch = {"x": torch.ones(2, 4, 3), "mask": torch.arange(4) < torch.tensor([4, 2])[:, None]}
    with mg.doctor.watch(steps=2, stop=True) as watched:
        for given in DataLoader([batch] * 9, batch_size=None):
            steps += 1
            layer(given["x"])[given["mask"]].mean().backward()
    assert (steps, watched.steps, watched.report.ok) == (2, 2, True)


def test_a_watch_that_recognises_nothing_says_which_argument_to_give() -> None:
    """NaN targets and a mask that only the loss reads, in a loop without a DataLoader."""
    layer, x = nn.Linear(3, 1), torch.ones(2, 4, 3)
    target = torch.tensor([[1.0, 2.0, 3.0, 4.0], [1.0, torch.nan, torch.nan, torch.nan]])

    def train() -> None:
        errors = layer(x).squeeze(-1) - target
        errors[~target.isnan()].square().mean().backward()

    for padding in (None, {"absent": "mask"}):
        with mg.doctor.watch(padding) as watched:
            train()
        (note,) = watched.report.notes
        assert "none was recognised" in note.message
        assert "('input')" in note.message
        assert "padding={key: mask}" in note.message
        assert watched.unpadded == 1
        # nothing was examined, which is not the same as nothing found
        assert not watched.report.ok
        assert str(watched.report).startswith("nothing was examined: padding: none was recognised")
    with mg.doctor.watch({"input": ~target.isnan()}) as watched:
        train()
    assert (watched.report.ok, watched.report.notes) == (True, [])
    assert watched.report.experiments


@pytest.mark.parametrize("batches", [0, 1])
def test_a_watch_of_no_backward_pass_is_not_ok(batches: int) -> None:
    layer = nn.Linear(3, 1)
    with mg.doctor.watch() as watched:
        for _ in range(batches):
            layer({"x": torch.ones(2, 4, 3)}["x"][torch.ones(2, 4, dtype=torch.bool)])
    assert not watched.report
    assert "nothing was examined" in str(watched.report)
