"""Every trainer on batches that are cut at random, with empty micro-batches, in one process and in two."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import lightning
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ignite.engine import Engine
from lightning.fabric import Fabric
from torch import Tensor, nn

import maskgrad as mg
from tests.ecosystem import test_lightning, test_skorch, test_transformers_trainer
from tests.ecosystem.micro_batches import (
    FORMS,
    Tagger,
    batch,
    cut,
    jagged,
    losses_of,
    moved,
    one_pass,
    recipe,
)
from tests.effort import examples
from tests.ranks import run_on_ranks

pytestmark = pytest.mark.filterwarnings("ignore")  # of the trainers, about themselves

Pieces = list[tuple[Tensor, Tensor]]


def sgd(model: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5)


def inputs_of(pieces: Pieces, form: str) -> dict[str, Any]:
    """A data set of which a sample is a micro-batch."""
    ((x, y),) = pieces
    known = y != -100
    if form == "jagged":
        x, y = jagged(x, y)
    elif form == "masked":
        y = mg.masked(torch.where(known, y, 99), known)
    return {"input_ids": x, "labels": y}


def hugging_face(
    micro: Pieces, every: int, form: str, clip: float, sparse: bool = False, **options: Any
) -> Any:
    model = Tagger(sparse)
    test_transformers_trainer.train(
        test_transformers_trainer.Trainer,
        model,
        micro,
        lambda pieces: inputs_of(pieces, form),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=every,
        num_train_epochs=1,
        learning_rate=0.5,
        max_grad_norm=clip,
        **options,
    )
    return model


def masked_labels(pieces: Pieces) -> tuple[Tensor, Any]:
    ((x, y),) = pieces
    return x, mg.masked(y, y != -100)


def accelerated(micro: Pieces, every: int, form: str, clip: float, sparse: bool = False) -> Any:
    """In one process its loader carries masked labels, and knows where an epoch ends within a step."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator = Accelerator(gradient_accumulation_steps=every, cpu=True)
    model, loader = Tagger(sparse), torch.utils.data.DataLoader(micro, collate_fn=masked_labels)
    model, optimizer = accelerator.prepare(model, sgd(model))
    if accelerator.num_processes == 1:
        loader = accelerator.prepare(loader)
    accumulator = mg.GradientAccumulator(model, scaler=accelerator.scaler)
    for x, y in loader:
        with accelerator.accumulate(model):
            accumulator.backward(*losses_of(model, x, y.filled(-100), form))
            if accelerator.sync_gradients:
                accumulator.finish()
                accelerator.unscale_gradients()
                mg.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return model


def in_fabric(micro: Pieces, every: int, form: str, clip: float, sparse: bool = False, **options: Any) -> Any:
    fabric = Fabric(**{"accelerator": "cpu", "devices": 1} | options)
    fabric.launch()
    model = Tagger(sparse)
    model, optimizer = fabric.setup(model, sgd(model))
    layout = "jagged" if form == "jagged" else "masked"
    for start in range(0, len(micro), every):
        recipe("fabric_loop", "propagate")(
            fabric, model, micro[start : start + every], lambda *given: losses_of(*given, layout)[0]
        )
        mg.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return model


def in_lightning(
    micro: Pieces, every: int, form: str, clip: float, sparse: bool = False, **options: Any
) -> Any:
    net = test_lightning.Net(form, sparse)
    test_lightning.fit(net, micro, every, gradient_clip_val=clip, **options)
    return net.tagger


def in_skorch(micro: Pieces, every: int, form: str, clip: float, sparse: bool = False) -> Any:
    """With dense gradients and plain data, which skorch takes."""
    return test_skorch.net_of(every, clip).fit(test_skorch.pieces(micro), y=None).module_.tagger


def in_ignite(
    micro: Pieces, every: int, form: str, clip: float, sparse: bool = False, parallel: bool = False
) -> Any:
    model: Any = Tagger(sparse)
    if parallel:
        model = nn.parallel.DistributedDataParallel(model)
    step = recipe("ignite_engine", "training_step")(
        model,
        sgd(model),
        lambda model, x, y: losses_of(model, x, y, form),
        every=every,
        max_norm=clip,
        prepare=tuple,
    )
    Engine(step).run(micro)
    return model


TRAINERS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (hugging_face, accelerated, in_fabric, in_lightning, in_skorch, in_ignite)
}


def whole_steps(micro: Pieces, every: int, clip: float) -> Tagger:
    """One pass over all of a step; the last has what is left of an epoch."""
    steps = [micro[start : start + every] for start in range(0, len(micro), every)]
    joined = [tuple(torch.cat(parts) for parts in zip(*step, strict=True)) for step in steps]
    assume(all(bool((y != -100).any()) for _, y in joined))
    truth = Tagger()
    one_pass(truth, joined, clip=clip)  # type: ignore[arg-type]
    return truth


SEEDS = st.integers(0, 10**6)
CLIPS = st.sampled_from([0.3, 100.0])  # gradients that are clipped tell nothing of their denominator


@pytest.mark.every
@pytest.mark.parametrize("trainer", TRAINERS)
@settings(max_examples=examples(10))
@given(
    seed=SEEDS,
    pieces=st.integers(1, 6),
    every=st.integers(1, 4),
    form=st.sampled_from(FORMS),
    clip=CLIPS,
    sparse=st.booleans(),
)
def test_any_split_is_the_whole_batch(
    trainer: str, seed: int, pieces: int, every: int, form: str, clip: float, sparse: bool
) -> None:
    micro = cut(seed, *batch(seed), pieces) + cut(seed + 1, *batch(seed + 1), pieces)
    truth = whole_steps(micro, every, clip)
    assert moved(TRAINERS[trainer](micro, every, form, clip, sparse), truth) < 1e-6


def parallel_options(trainer: str, world_size: int) -> dict[str, Any]:
    """What each is told of the other ranks; skorch and accelerate are told nothing."""
    started: dict[str, Any] = {"cluster_environment": Started(), "process_group_backend": "gloo"}
    if trainer == "in_lightning":
        strategy = lightning.pytorch.strategies.DDPStrategy(**started)
        return {"strategy": strategy, "devices": world_size, "use_distributed_sampler": False}
    if trainer == "in_fabric":
        return {"strategy": lightning.fabric.strategies.DDPStrategy(**started), "devices": world_size}
    return {"parallel": True} if trainer == "in_ignite" else {}


class Started(lightning.fabric.plugins.environments.TorchElasticEnvironment):
    """Processes in a group that is there already."""

    main_address, main_port = "127.0.0.1", 29500

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        pass


def _begin(rank: int, world_size: int) -> None:
    """A process of Hugging Face's and others, in a group that is there already."""
    warnings.simplefilter("ignore")
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ.update({key: str(value) for key, value in places.items()})
    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    GradientState._reset_state()


def _on_ranks(
    rank: int, world_size: int, trainer: str, micro: Pieces, every: int, form: str, clip: float
) -> list[Tensor]:
    _begin(rank, world_size)
    if trainer == "hugging_face":  # it deals micro-batches out by itself
        model = hugging_face(micro, every, form, clip, ddp_backend="gloo")
    else:
        options = parallel_options(trainer, world_size)
        model = TRAINERS[trainer](micro[rank::world_size], every, form, clip, **options)
    return [param.detach() for param in model.parameters()]


@pytest.mark.every
@pytest.mark.parametrize("trainer", TRAINERS)
@settings(max_examples=examples(4))
@given(seed=SEEDS, every=st.integers(1, 3), form=st.sampled_from(FORMS), clip=CLIPS)
def test_any_split_on_two_ranks(trainer: str, seed: int, every: int, form: str, clip: float) -> None:
    micro = cut(seed, *batch(seed), 2 * every) + cut(seed + 1, *batch(seed + 1), 2 * every)
    # skorch divides its scores by the number of labels of a rank
    assume(trainer != "in_skorch" or all(any((y != -100).any() for _, y in micro[r::2]) for r in range(2)))
    truth = whole_steps(micro, 2 * every, clip)
    for params in run_on_ranks(_on_ranks, 2, trainer, micro, every, form, clip):
        for mine, theirs in zip(params, truth.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.detach(), atol=1e-6, rtol=0)


def _evaluated(rank: int, world_size: int, number: int) -> Any:
    _begin(rank, world_size)
    trainer = test_transformers_trainer.Trainer(
        model=test_transformers_trainer.MODELS["token classification"](),
        args=test_transformers_trainer.arguments(ddp_backend="gloo"),
        eval_dataset=test_transformers_trainer.samples(number),
        data_collator=mg.integrations.TokenCollator(),
    )
    return trainer.evaluate()["eval_loss"]


@pytest.mark.parametrize("number", [8, 14])
def test_an_evaluation_on_two_ranks_is_the_mean_over_all_labels(number: int) -> None:
    model = test_transformers_trainer.MODELS["token classification"]().eval()
    losses = test_transformers_trainer.losses_of(model, test_transformers_trainer.samples(number))
    for found in run_on_ranks(_evaluated, 2, number):
        assert found == pytest.approx(float(losses.mean()), abs=1e-6)
