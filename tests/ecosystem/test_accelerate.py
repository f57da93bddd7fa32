"""accelerate: its loop with mg.GradientAccumulator, against one pass over the whole batch."""

from __future__ import annotations

from typing import Any

import accelerate.utils.operations
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

import maskgrad as mg
from tests.ecosystem.micro_batches import Tagger, batch, losses_of, moved, one_pass
from tests.ecosystem.rows import refused

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:accelerate")


@pytest.fixture(autouse=True)
def _a_new_accelerator() -> None:
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def train(
    accelerator: Any, model: Any, micro_batches: list[Any], form: str = "masked", clip: float = 0.3
) -> tuple[Any, list[Any]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer = accelerator.prepare(model, optimizer)
    accumulator = mg.GradientAccumulator(model, scaler=accelerator.scaler)
    means = []
    for x, y in micro_batches:
        with accelerator.accumulate(model):
            accumulator.backward(*losses_of(model, x, y, form))
            if accelerator.sync_gradients:
                means.append(float(accumulator.finish()))
                accelerator.unscale_gradients()
                mg.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return model, means


def test_loaders_end_within_a_step_and_carry_masked_labels() -> None:
    """Seven batches of two, of which accelerate makes steps of three, three and one."""
    x, y = batch(5, samples=14)
    data = [(x[i], mg.masked(y[i].clamp(min=0), y[i] != -100)) for i in range(14)]
    accelerator = Accelerator(gradient_accumulation_steps=3, cpu=True)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accumulator = mg.GradientAccumulator(model, scaler=accelerator.scaler)
    for tokens, labels in loader:
        with accelerator.accumulate(model):
            scores = model(tokens).movedim(-1, 1)
            accumulator.backward(torch.nn.functional.cross_entropy(scores, labels, reduction="none"))
            if accelerator.sync_gradients:
                accumulator.finish()
                mg.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            optimizer.zero_grad()
    truth = Tagger()
    one_pass(truth, [(x[a : a + 6], y[a : a + 6]) for a in (0, 6, 12)])
    assert moved(model, truth) < 1e-6


@refused(
    "accelerate",
    "`slice_tensors`, `listify`, `get_data_structure`",
    "`x[tensor_slice]`, `mg.interop.to_tensors`",
)
@pytest.mark.parametrize("name", ["slice_tensors", "listify", "get_data_structure"])
def test_what_leaves_masked_tensors_alone_refuses(name: str) -> None:
    function = getattr(accelerate.utils.operations, name)
    options = (slice(0, 1),) if name == "slice_tensors" else ()
    x = mg.masked(torch.arange(6.0).view(3, 2), torch.tensor([[True], [False], [True]]))
    for data in (x, x.to_sparse(), {"x": [x]}):
        with pytest.raises(mg.UnsupportedOperationError, match=r"x\[tensor_slice\].*mg\.interop\.to_tensors"):
            function(data, *options)
    parts = mg.interop.to_tensors({"x": x})
    assert function(parts, *options) is not None
    if name == "slice_tensors":
        found = mg.interop.from_tensors(function(parts, *options))
        assert found["x"].tolist() == x[:1].tolist()
