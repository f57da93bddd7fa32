"""The doctor on the training steps of our own examples: nothing is found, or what is known to be wrong is."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import maskgrad as mg
from examples.finetune import loop
from examples.flights import model as flights
from examples.flights import rivals
from examples.movielens.autoencoder import ItemAutoencoderLearner
from examples.movielens.baseline import BiasBaseline
from examples.movielens.ratings import Ratings
from examples.phonemes import jagged, padded
from examples.phonemes.model import Speller
from examples.phonemes.words import PADDING
from examples.tour import leak, leaking
from maskgrad import doctor

SAMPLES = [
    {"letters": torch.arange(1, 1 + letters), "sounds": torch.arange(3, 3 + sounds)}
    for letters, sounds in ((3, 4), (6, 5), (2, 3), (5, 6))
]


def speller() -> Speller:
    torch.manual_seed(0)
    return Speller(letters=30, sounds=40, width=16, layers=1)


def test_the_padded_speller_leaks_nothing() -> None:
    model, batch = speller(), padded.collate(SAMPLES)
    real = {key: tensor != PADDING for key, tensor in batch.items()}
    report = doctor.examine(lambda b: padded.loss(model, b), batch, padding=real)
    assert report.ok, str(report)
    assert {"padding-leak", "padding-length", "order"} <= {tried.name for tried in report.experiments}


def test_the_jagged_speller_has_no_padding_and_its_samples_are_apart() -> None:
    model = speller()
    report = doctor.examine(lambda b: jagged.loss(model, b), jagged.collate(SAMPLES))
    assert report.ok, str(report)
    assert "order" in {tried.name for tried in report.experiments}


def ratings() -> Ratings:
    torch.manual_seed(0)
    pairs = torch.randperm(12 * 8)[:60]
    return Ratings(pairs // 8, pairs % 8, torch.randint(1, 6, (60,)).float(), num_users=12, num_movies=8)


def test_the_autoencoder_reads_ratings_that_exist() -> None:
    learner = ItemAutoencoderLearner(ratings(), BiasBaseline.fit(ratings()))
    with doctor.watch(steps=1) as watched:
        learner.train_epoch()
    assert watched.report.ok, str(watched.report)
    assert {part.name: part.recognised for part in watched.report.inventory} == {
        "input": "the pattern of the MaskedTensor"
    }
    assert watched.report.experiments


@pytest.mark.parametrize(
    "treat", [lambda numbers: numbers, rivals.filled_with_means, rivals.with_indicators],
    ids=["masked", "means", "indicators"],
)  # fmt: skip
def test_missing_flight_data_moves_nothing(treat: Any) -> None:
    torch.manual_seed(0)
    batch = {
        "numbers": mg.masked(torch.randn(12, 5), torch.rand(12, 5) > 0.3),
        "codes": mg.masked(torch.randint(0, 4, (12, 2)), torch.rand(12, 2) > 0.2),
        "delays": mg.masked(torch.randn(12, 2), torch.rand(12, 2) > 0.2),
    }
    model = flights.Delays(treat(batch["numbers"]).shape[1], [5, 5])
    report = doctor.examine(
        lambda b: F.mse_loss(model(treat(b["numbers"]), b["codes"]), b["delays"]), batch, model=model
    )
    assert report.ok, str(report)
    assert "nan-under-mask" in {tried.name for tried in report.experiments}


@pytest.mark.skipif(find_spec("transformers") is None, reason="the model is of transformers")
@pytest.mark.parametrize(("way", "found"), [(loop.exact, []), (loop.mean_of_means, ["denominator"])])
def test_micro_batches_of_unequal_numbers_of_labels(way: loop.Way, found: list[str]) -> None:
    """The example shows what a mean of means does, and the doctor finds it."""
    from examples.finetune.model import StressReader

    torch.manual_seed(0)
    model = StressReader(8, 1)
    batch = {
        "letters": torch.tensor([[1, 2, 3, 0], [4, 5, 0, 0], [6, 7, 8, 9], [3, 4, 5, 0]]),
        "length": torch.tensor([3, 2, 4, 3]),
        "labels": torch.tensor([-100, 1, 0, 2]),
    }

    def step(b: dict[str, Tensor]) -> Tensor:
        samples = [
            {"input_ids": letters[:length].tolist(), "labels": int(label)}
            for letters, length, label in zip(*b.values(), strict=True)
        ]
        micro_batches, start = [], 0
        for size in (3, 1):
            micro_batches.append(samples[start : start + size])
            start += size
        return way(model, micro_batches)

    report = doctor.examine(step, batch, experiments=["denominator"], model=model)
    assert report.kinds() == found, str(report)


def test_the_script_of_the_tour_leaks_where_it_says() -> None:
    batch = leaking.batch_of()
    finding = doctor.examine(leaking.step, batch).findings[0]
    assert (finding.kind, finding.code) == ("padding-leak", "pooled = hidden.mean(1)")
    assert Path(finding.file) == Path(leaking.__file__)
    assert doctor.examine(leak.fixed, batch).ok
