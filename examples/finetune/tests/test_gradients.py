"""Words, losses and gradients; what needs the Trainer, and so accelerate, is in tests/ecosystem."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

from examples.finetune import loop, model, words
from examples.finetune.__main__ import app

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about itself


@pytest.fixture(scope="module")
def reader() -> model.StressReader:
    torch.manual_seed(0)
    return model.StressReader(width=8, layers=1).double()


def step_with_few_labels(samples: int = 12) -> loop.MicroBatches:
    """Micro-batches with 4, 1 and no labels."""
    found = words.steps_of(words.load(samples), 1, 3, 4)[0]
    for place, sample in enumerate([sample for micro_batch in found for sample in micro_batch]):
        sample["labels"] = place % words.CLASSES if place < 5 else words.IGNORED
    return found


def test_one_denominator_is_the_whole_batch_and_the_mean_of_means_is_not(reader) -> None:
    step = step_with_few_labels()
    truth = loop.gradient(loop.whole_batch, reader, step)
    assert loop.distance(loop.gradient(loop.exact, reader, step), truth) < 1e-12
    assert loop.distance(loop.gradient(loop.mean_of_means, reader, step), truth) > 0.1
    assert all(p.grad is None for p in reader.parameters())


def test_the_mean_over_letters_is_that_of_each_word_alone(reader) -> None:
    samples = words.load(6, seed=2)
    scores = reader(**loop.collate(samples))["logits"].to_tensor(float("nan"))
    with torch.no_grad():
        for sample, found in zip(samples, scores, strict=True):
            hidden = reader.encoder(input_ids=torch.tensor([sample["input_ids"]])).last_hidden_state
            torch.testing.assert_close(reader.head(hidden[0].mean(0)), found.detach())


def test_losses_are_those_of_labels(reader) -> None:
    batch = loop.collate([sample for part in step_with_few_labels() for sample in part])
    found = reader(**batch)
    scores = found["logits"].to_tensor(float("nan"))
    expected = F.cross_entropy(scores, batch["labels"], ignore_index=words.IGNORED)
    torch.testing.assert_close(found["loss"].mean(), expected)
    assert found["loss"].num_specified() == 5


def test_the_words() -> None:
    found = {tuple(sample["input_ids"]): sample["labels"] for sample in words.load(10**6)}
    assert len(found) == 117_493

    def stressed(word: str) -> int:
        return found[tuple(ord(letter) - 96 for letter in word)]

    assert [stressed(word) for word in ("cat", "apple", "banana", "university")] == [words.IGNORED, 0, 1, 2]
    assert max(found.values()) == words.CLASSES - 1


def test_micro_batches_are_sorted_by_length_within_a_step() -> None:
    steps = words.steps_of(words.load(24), 2, 3, 4)
    assert [[len(part) for part in step] for step in steps] == [[4, 4, 4]] * 2
    for step in steps:
        lengths = [len(sample["input_ids"]) for part in step for sample in part]
        assert lengths == sorted(lengths)


@pytest.mark.parametrize("package", ["transformers", "accelerate"])
def test_what_is_absent_is_named_before_the_training(monkeypatch, tmp_path, package) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = CliRunner().invoke(app, ["--quick", "--out", str(tmp_path)])
    assert done.exit_code == 1
    assert f"{package!r}, which is not installed; install it with: pip install" in done.stderr
    assert not list(tmp_path.iterdir())
