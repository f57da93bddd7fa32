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
from lightning.fabric import Fabric
from skorch.callbacks import GradientNormClipping
from torch import Tensor
from torch.nn import functional as F

import maskgrad as mg
from tests.ecosystem import (
    test_accelerate,
    test_fabric,
    test_ignite,
    test_lightning,
    test_skorch,
    test_transformers_trainer,
)
from tests.ecosystem.micro_batches import FORMS, Tagger, batch, cut, jagged, moved, one_pass
from tests.ecosystem.rows import one_line
from tests.effort import examples
from tests.ranks import run_on_ranks

pytestmark = pytest.mark.filterwarnings("ignore")  # of the trainers, about themselves

Pieces = list[tuple[Tensor, Tensor]]


class Labelled(Tagger):
    """What Hugging Face's Trainer expects: a loss from labels."""

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        scores = super().forward(input_ids)
        return {"loss": F.cross_entropy(scores.movedim(-1, 1), labels), "logits": scores}


def inputs_of(pieces: Pieces, form: str) -> dict[str, Any]:
    """A data set of which a sample is a micro-batch."""
    ((x, y),) = pieces
    known = y != -100
    if form == "jagged":
        x, y = jagged(x, y)
    elif form == "masked":
        y = mg.masked(torch.where(known, y, 99), known)
    return {"input_ids": x, "labels": y}


def hugging_face(steps: list[Pieces], form: str, clip: float, sparse: bool = False, **options: Any) -> Any:
    model = Labelled(sparse)
    test_transformers_trainer.train(
        test_transformers_trainer.Trainer,
        model,
        [piece for pieces in steps for piece in pieces],
        lambda pieces: inputs_of(pieces, form),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=len(steps[0]) // (2 if options else 1),
        num_train_epochs=1,
        learning_rate=0.5,
        max_grad_norm=clip,
        **options,
    )
    return model


def accelerated(steps: list[Pieces], form: str, clip: float, sparse: bool = False) -> Any:
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    accelerator = Accelerator(gradient_accumulation_steps=len(steps[0]), cpu=True)
    micro = [piece for pieces in steps for piece in pieces]
    return test_accelerate.train(accelerator, Tagger(sparse), micro, form, clip)[0]


def in_fabric(steps: list[Pieces], form: str, clip: float, sparse: bool = False, **options: Any) -> Any:
    fabric = Fabric(**{"accelerator": "cpu", "devices": 1} | options)
    fabric.launch()
    return test_fabric.train(fabric, Tagger(sparse), steps, form, clip)[0]


def in_lightning(steps: list[Pieces], form: str, clip: float, sparse: bool = False, **options: Any) -> Any:
    net = test_lightning.Net(form, sparse)
    test_lightning.fit(
        net, [piece for pieces in steps for piece in pieces], len(steps[0]), gradient_clip_val=clip, **options
    )
    return net.tagger


def in_skorch(steps: list[Pieces], form: str, clip: float, sparse: bool = False) -> Any:
    """With dense gradients and plain data, which skorch takes."""
    net = test_skorch.net_of(len(steps[0]), callbacks=[GradientNormClipping(clip)])
    micro = [piece for pieces in steps for piece in pieces]
    return net.fit(test_skorch.Pieces(micro), y=None).module_.tagger


def in_ignite(
    steps: list[Pieces], form: str, clip: float, sparse: bool = False, parallel: bool = False
) -> Any:
    model: Any = Tagger(sparse)
    if parallel:
        model = torch.nn.parallel.DistributedDataParallel(model)
    micro = [piece for pieces in steps for piece in pieces]
    test_ignite.train(model, micro, form, every=len(steps[0]), max_norm=clip)
    return model


TRAINERS: dict[str, Callable[..., Any]] = {
    f.__name__: f for f in (hugging_face, accelerated, in_fabric, in_lightning, in_skorch, in_ignite)
}


def draw(seed: int, pieces: int) -> tuple[list[Any], list[Pieces]]:
    """Two batches, and the same in pieces."""
    batches = [batch(seed), batch(seed + 1)]
    assume(all(bool((y != -100).any()) for _, y in batches))
    return batches, [cut(seed + n, *whole, pieces) for n, whole in enumerate(batches)]


SEEDS = st.integers(0, 10**6)
CLIPS = st.sampled_from([0.3, 100.0])  # gradients that are clipped tell nothing of their denominator


@one_line(
    "accelerate",
    "`accumulate`",
    "`mg.GradientAccumulator(model, scaler=accelerator.scaler)`, [recipe](trainers/accelerate.md)",
)
@one_line("lightning", "Fabric, micro-batches", "[recipe](trainers/fabric.md)")
@one_line("ignite", "training, micro-batches", "[recipe](trainers/ignite.md)")
@one_line("skorch", "masked targets, micro-batches", "[recipe](trainers/skorch.md)")
@pytest.mark.every
@pytest.mark.parametrize("trainer", TRAINERS)
@settings(max_examples=examples(10))
@given(seed=SEEDS, pieces=st.integers(1, 6), form=st.sampled_from(FORMS), clip=CLIPS, sparse=st.booleans())
def test_any_split_is_the_whole_batch(
    trainer: str, seed: int, pieces: int, form: str, clip: float, sparse: bool
) -> None:
    batches, steps = draw(seed, pieces)
    truth = Tagger()
    one_pass(truth, batches, clip=clip)
    assert moved(TRAINERS[trainer](steps, form, clip, sparse), truth) < 1e-6


def parallel_options(trainer: str, world_size: int) -> dict[str, Any]:
    """What each is told of the other ranks; skorch and accelerate are told nothing."""
    started: dict[str, Any] = {
        "cluster_environment": test_lightning._Started(),
        "process_group_backend": "gloo",
    }
    if trainer == "in_lightning":
        strategy = lightning.pytorch.strategies.DDPStrategy(**started)
        return {"strategy": strategy, "devices": world_size, "use_distributed_sampler": False}
    if trainer == "in_fabric":
        return {"strategy": lightning.fabric.strategies.DDPStrategy(**started), "devices": world_size}
    return {"parallel": True} if trainer == "in_ignite" else {}


def _on_ranks(
    rank: int, world_size: int, trainer: str, steps: list[Pieces], form: str, clip: float
) -> list[Tensor]:
    warnings.simplefilter("ignore")
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ.update({key: str(value) for key, value in places.items()})
    if trainer == "hugging_face":  # it deals micro-batches out by itself
        AcceleratorState._reset_state(True)
        PartialState._reset_state()
        GradientState._reset_state()
        model = hugging_face(steps, form, clip, ddp_backend="gloo")
    else:
        own = [pieces[rank::world_size] for pieces in steps]
        model = TRAINERS[trainer](own, form, clip, **parallel_options(trainer, world_size))
    return [param.detach() for param in model.parameters()]


@pytest.mark.every
@pytest.mark.parametrize("trainer", TRAINERS)
@settings(max_examples=examples(4))
@given(seed=SEEDS, pieces=st.integers(1, 3), form=st.sampled_from(FORMS), clip=CLIPS)
def test_any_split_on_two_ranks(trainer: str, seed: int, pieces: int, form: str, clip: float) -> None:
    batches, steps = draw(seed, 2 * pieces)
    truth = Tagger()
    one_pass(truth, batches, clip=clip)
    for params in run_on_ranks(_on_ranks, 2, trainer, steps, form, clip):
        for mine, theirs in zip(params, truth.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.detach(), atol=1e-6, rtol=0)
