from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import maskgrad
from maskgrad.cli.main import app
from maskgrad.cli.programs import checkout


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As if the package were installed from a wheel, and nothing of the repository near."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(maskgrad, "__file__", str(tmp_path / "site-packages" / "maskgrad" / "__init__.py"))
    return tmp_path


@pytest.mark.parametrize(("command", "folder"), [("demo", "examples"), ("bench", "benchmarks")])
def test_without_a_checkout_it_says_where_the_programs_are(command: str, folder: str, nowhere: Path) -> None:
    done = CliRunner().invoke(app, [command])
    assert done.exit_code == 1
    assert f"the folder {folder} is in its repository: git clone https://" in done.stderr
    assert done.stderr.strip().endswith(f"&& maskgrad {command}")


def test_a_checkout_is_found_from_within_and_nothing_else_is_taken_for_one(nowhere: Path) -> None:
    (nowhere / "pyproject.toml").write_text('[project]\nname = "other"\n')
    assert checkout() is None
    (nowhere / "pyproject.toml").write_text('[project]\nname = "maskgrad"\n')
    assert checkout() == nowhere
    assert CliRunner().invoke(app, ["demo"]).exit_code == 1  # one without examples


def test_options_are_those_of_the_program(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo", "movielens", "--epochs", "0", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "--epochs" in done.output
    done = CliRunner().invoke(app, ["bench", "--list"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "reductions" in done.output


def test_an_unknown_program_is_refused_with_the_names_of_the_others() -> None:
    done = CliRunner().invoke(app, ["demo", "titanic"])
    assert done.exit_code == 2
    assert "unknown program 'titanic'" in done.output
    assert "movielens" in done.output
