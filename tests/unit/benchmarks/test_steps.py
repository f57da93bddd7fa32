"""What ``make steps`` compares is the same on both versions, and what it says of their times is true."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks import step_programs, steps


@pytest.mark.parametrize("name", ["MLP 64x200", "rows: Adagrad, 4096 of 100000x32"])
def test_programs_run_and_agree_with_themselves(name: str, tmp_path: Path) -> None:
    runs = []
    for wrong in (0.0, 0.0, 0.1):
        losses, gradients = step_programs.results(name)
        gradients[next(iter(gradients))] *= 1 + wrong
        torch.save(gradients, file := tmp_path / f"{len(runs)}.pt")
        runs.append({"name": name, "losses": losses, "gradients": str(file)})
    before, after, other = runs
    first, last = losses
    assert last < first
    assert steps.differences(before, after) == []
    (text,) = steps.differences(before, other)
    assert text.startswith("the gradient of 0.weight: ")
    (text,) = steps.differences(before, after | {"losses": [first, last * 1.1]})
    assert text.startswith("the last loss is ")


def test_the_source_of_a_commit_is_that_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "ROOT", tmp_path)
    file = tmp_path / "src" / "maskgrad" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text("before = 1")
    for command in ("init -q", "add .", "-c user.name=a -c user.email=a@b.c commit -q -m one"):
        steps.git(*command.split())
    with pytest.raises(SystemExit, match="no tag to compare with; name a commit: make steps ARGS='--against"):
        steps.last_tag()
    steps.git("tag", "v1")
    file.write_text("after = 1")
    (tmp_path / "out").mkdir()
    source = steps.source_of(steps.last_tag(), tmp_path / "out")
    assert (source / "maskgrad" / "__init__.py").read_text() == "before = 1"
    with pytest.raises(SystemExit, match="git rev-parse"):
        steps.source_of("nowhere", tmp_path / "out")


def test_a_slow_step_and_slow_steps_together_are_no_goals_met() -> None:
    def told(times: dict[str, tuple[float, float]]) -> tuple[bool, str]:
        console = Console(width=120, record=True, quiet=False)
        return steps.report(console, times, "v1"), console.export_text()

    met, text = told({"MLP": (1.0, 1.1), "rows": (1.0, 1.05)})
    assert met
    assert "2 of 2 steps at their goal" in text
    assert "1.07 of the time before" in text
    assert told({"MLP": (1.0, 1.2), "encoder": (1.0, 1.2)})[0] is False
    met, text = told({"MLP": (1.0, 1.0), "rows": (1.0, 1.11)})
    assert not met
    assert "1 of 2 steps at their goal" in text
