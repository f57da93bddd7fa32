"""What ``make steps`` compares is the same on both versions, and what it says of their times is true."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks import step_programs, steps


def saved(name: str, folder: Path, wrong: float = 0.0) -> dict[str, object]:
    losses, gradients = step_programs.results(name)
    first = next(iter(gradients))
    gradients[first] = gradients[first] + wrong * gradients[first]
    torch.save(gradients, folder / "gradients.pt")
    return {"name": name, "losses": losses, "gradients": str(folder / "gradients.pt")}


@pytest.mark.parametrize("name", ["MLP 64x200", "rows: Adagrad, 4096 of 100000x32"])
def test_programs_run_and_agree_with_themselves(name: str, tmp_path: Path) -> None:
    folders = [tmp_path / which for which in ("before", "after", "wrong")]
    for folder in folders:
        folder.mkdir()
    before, after, wrong = (saved(name, folder, 0.1 * (folder.name == "wrong")) for folder in folders)
    first, last = before["losses"]  # type: ignore[misc]
    assert last < first
    assert steps.differences(before, after) == []
    (text,) = steps.differences(before, wrong)
    assert text.startswith("the gradient of 0.weight: ")
    assert steps.differences(before, after | {"losses": [first, last * 1.1]})[0].startswith(
        "the last loss is "
    )


def test_the_source_of_a_commit_is_that_of_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone, out = tmp_path / "clone", tmp_path / "out"
    file = clone / "src" / "maskgrad" / "__init__.py"
    file.parent.mkdir(parents=True)
    out.mkdir()
    monkeypatch.setattr(steps, "ROOT", clone)
    subprocess.run(["git", "init", "-q", str(clone)], check=True)
    file.write_text("before = 1")
    steps.git("add", ".")
    steps.git("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "-m", "one")
    file.write_text("after = 1")
    with pytest.raises(
        SystemExit, match="no tag to compare with; name a commit: make steps ARGS='--against COMMIT'"
    ):
        steps.last_tag()
    steps.git("tag", "v1")
    assert steps.last_tag() == "v1"
    assert (steps.source_of("v1", out) / "maskgrad" / "__init__.py").read_text() == "before = 1"
    with pytest.raises(SystemExit, match="git rev-parse"):
        steps.source_of("nowhere", out)


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
