from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

import maskgrad as mg

MASK = torch.arange(4) < torch.tensor([4, 2])[:, None]


def test_a_watch_gives_the_program_its_own_numbers_and_takes_itself_away() -> None:
    layer, x = nn.Linear(3, 1), torch.ones(2, 4, 3)
    layer(x).mean().backward()
    expected, before = layer.weight.grad.clone(), torch.autograd.backward
    layer.zero_grad()
    with mg.doctor.watch({"x": "mask"}) as watched:
        for batch in DataLoader([{"x": x, "mask": MASK}], batch_size=None):
            layer(batch["x"]).mean().backward()
    torch.testing.assert_close(layer.weight.grad, expected, rtol=0, atol=0)
    assert torch.autograd.backward is before
    assert watched.report.kinds() == ["padding-leak"]


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
        for words in ("none was recognised", "('input')", "padding={key: mask}"):
            assert words in note.message
        # nothing was examined, which is not the same as nothing found
        assert not watched.report.ok
        assert watched.report.verdict == "incomplete"
    with mg.doctor.watch({"input": ~target.isnan()}, steps=1) as watched:
        train()
    assert (watched.report.ok, watched.report.notes) == (True, [])
    assert watched.report.experiments


class Averaged(nn.Module):
    """Leaks, or divides by the padded length, or is right."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.table, self.head, self.fault = nn.Embedding(20, 8), nn.Linear(8, 5), fault

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden, seen = self.table(ids), mask[..., None]
        if self.fault == "padding-leak":
            return self.head(hidden.mean(1))  # LEAK
        count = hidden.size(1) if self.fault else seen.sum(1)
        return self.head((hidden * seen).sum(1) / count)


def _texts() -> tuple[Tensor, Tensor]:
    mask = torch.arange(6) < torch.tensor([6, 4, 3])[:, None]
    return torch.randint(1, 20, (3, 6)) * mask, mask


@pytest.mark.parametrize("fault", ["padding-leak", "padding-length", ""])
@pytest.mark.parametrize("evaluates", ["without gradients", "each batch without gradients", "with gradients"])
@pytest.mark.parametrize("loader", [True, False])
def test_a_validation_before_the_training_is_not_the_first_step(
    loader: bool, evaluates: str, fault: str
) -> None:
    """It was: the batches of the training were never rewritten, and the report said ok."""
    model = Averaged(fault)
    samples = [dict(zip(("ids", "mask"), _texts(), strict=True)) for _ in range(6)]
    batches: Any = DataLoader(samples, batch_size=None) if loader else samples

    def evaluate() -> None:
        model.eval()
        with torch.set_grad_enabled(evaluates != "without gradients"):
            for batch in batches:
                with torch.set_grad_enabled(evaluates == "with gradients"):
                    model(**batch)
        model.train()

    with mg.doctor.watch(stop=True) as watched:
        evaluate()
        for batch in batches:
            F.cross_entropy(model(**batch), torch.arange(3)).backward()
            evaluate()
    assert watched.report.kinds() == ([fault] if fault else []), watched.report
    assert watched.report.ok is not bool(fault), watched.report


@pytest.mark.parametrize("leaks", ["encoder", "next states", ""])
def test_what_is_computed_without_gradients_belongs_to_the_step(leaks: str) -> None:
    """A frozen encoder, and the value of the next states of a trajectory."""
    encoder, value = Averaged(""), nn.Linear(5, 1)
    with mg.doctor.watch(stop=True) as watched:
        for _ in range(4):
            (ids, mask), (next_ids, next_mask) = _texts(), _texts()
            encoder.fault = "padding-leak" if leaks == "next states" else ""
            with torch.no_grad():
                target = encoder(next_ids, next_mask.clone())
            encoder.fault = "padding-leak" if leaks == "encoder" else ""
            value(encoder(ids, mask.clone()) - target).square().mean().backward()
    assert watched.report.kinds() == (["padding-leak"] if leaks else []), watched.report


@pytest.mark.parametrize("right", [True, False])
def test_gradients_that_are_returned_are_a_backward_pass(right: bool) -> None:
    """But not those of a penalty, which are a part of the loss."""
    layer, mask = nn.Linear(3, 1), MASK  # in a variable of the program
    # under a mode, which calls functions twice
    with mg.doctor.watch({"input": mask}) as watched, torch.device("cpu"):
        for _ in range(2):
            x = torch.ones(2, 4, 3, requires_grad=True)
            out = layer(x)[mask] if right else layer(x)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            loss = out.square().mean() + slope[mask].square().mean()
            torch.autograd.grad(loss, [layer.weight, layer.bias])
    assert watched.passes == 2
    assert watched.report.ok is right
    tried = {experiment.name for experiment in watched.report.experiments}
    assert tried == ({"padding-leak", "padding-length"} if right else {"padding-leak"})
    assert right or "the gradient of weight and 1 more" in watched.report.findings[0].message


def test_the_extension_for_notebooks_names_the_block() -> None:
    with pytest.raises(ImportError, match=r"write `with mg\.doctor\.watch\(\) as watched:` before the loop"):
        mg.doctor.load_ipython_extension(None)
