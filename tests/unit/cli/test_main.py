from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import maskgrad
from maskgrad.cli.main import app

COMMANDS = ("doctor", "info", "warmup")


def test_help_lists_what_an_installed_package_can_do() -> None:
    done = CliRunner().invoke(app, ["--help"])
    assert done.exit_code == 0
    assert tuple(re.findall(r"^  (\w+)  ", done.output, re.MULTILINE)) == COMMANDS
    assert CliRunner().invoke(app, []).exit_code == 2  # nothing was asked for


def test_the_version_and_the_types_of_values_in_the_help() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"maskgrad {maskgrad.__version__}\n")
    text = CliRunner().invoke(app, ["doctor", "--help"]).output
    assert re.search(r"--documents +<str>", text)
    assert re.search(r"--causal +Later", text)  # a flag has none


@pytest.mark.processes(of="file")
def test_help_loads_nothing_heavy() -> None:
    code = (
        "import json, sys; from typer.testing import CliRunner; from maskgrad.cli.main import app;"
        f"assert not any(CliRunner().invoke(app, [name, '--help']).exit_code for name in {COMMANDS});"
        "print(json.dumps([m for m in ('matplotlib', 'pandas', 'numba') if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
