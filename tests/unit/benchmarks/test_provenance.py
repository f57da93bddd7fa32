from __future__ import annotations

import os

import pytest
import torch

from benchmarks import provenance


def test_machine_versions_and_date() -> None:
    facts = provenance.provenance()
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == str(torch.get_num_threads())
    assert facts["cores"] == str(os.cpu_count())
    assert len(facts["date"]) == len("2026-11-20 08:58")
    assert facts["cpu"]
    assert all(isinstance(value, str) for value in facts.values())


def test_the_repository_of_somebody_else_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"rev-parse": "/home/somebody/project", "status": ""}
    monkeypatch.setattr(provenance, "_git", lambda command, *_: answers[command])
    assert provenance.provenance()["commit"] == ""


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert provenance.provenance()["commit"] == ""


def test_where_the_system_keeps_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_load() -> None:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", no_load)
    facts = provenance.provenance()
    assert facts["load"] == ""
    assert not provenance.is_busy(facts)


@pytest.mark.parametrize(("load", "busy"), [("0.50", False), ("0.51", True)])
def test_busy_is_a_quarter_of_the_cores(load: str, busy: bool) -> None:
    assert provenance.is_busy({"load": load, "cores": "2"}) is busy
