"""accelerate: its loop with mg.GradientAccumulator, against one pass over the whole batch."""

from __future__ import annotations

import os
from typing import Any

import accelerate.utils.operations
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor

import maskgrad as mg
from tests.ecosystem.micro_batches import FORMS, Tagger, batch, cut, losses_of, moved, one_pass
from tests.ecosystem.rows import one_line, refused
from tests.ranks import run_on_ranks

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:accelerate")
STEPS = 3


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


@one_line(
    "accelerate",
    "`accumulate`",
    "`mg.GradientAccumulator(model, scaler=accelerator.scaler)`, [recipe](trainers/accelerate.md)",
)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sparse", [False, True])
def test_a_step_is_one_pass(form: str, sparse: bool) -> None:
    batches = [batch(seed) for seed in range(STEPS)]
    micro = [piece for seed, whole in enumerate(batches) for piece in cut(seed, *whole, 4)]
    assert not all(len(x) for x, _ in micro)
    truth = Tagger()
    means = one_pass(truth, batches)
    model, found = train(
        Accelerator(gradient_accumulation_steps=4, cpu=True), Tagger(sparse=sparse), micro, form
    )
    assert moved(model, truth) < 1e-6
    torch.testing.assert_close(found, means, atol=1e-6, rtol=1e-6)


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


def _on_ranks(rank: int, world_size: int) -> list[Tensor]:
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ.update({key: str(value) for key, value in places.items()})
    micro = [piece for seed in range(STEPS) for piece in cut(seed, *batch(seed), 6)[rank::2]]
    model, _ = train(Accelerator(gradient_accumulation_steps=3, cpu=True), Tagger(), micro)
    return [param.detach() for param in model.parameters()]


def test_two_ranks() -> None:
    truth = Tagger()
    one_pass(truth, [batch(seed) for seed in range(STEPS)])
    for params in run_on_ranks(_on_ranks, 2):
        for mine, theirs in zip(params, truth.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.detach(), atol=1e-6, rtol=0)


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
