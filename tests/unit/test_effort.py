"""Rules by which the light run leaves tests to the full one, and ``--device``, ``--dtype``, on a file of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGINS = ("-p", "tests.effort", "-p", "tests.defaults")
TESTS = """
import pytest

@pytest.mark.parametrize("b", range(8))
@pytest.mark.parametrize("a", range(8))
def test_many(a, b): pass

@pytest.mark.every
@pytest.mark.parametrize("a", range(9))
def test_every(a): pass

@pytest.mark.dtypes(per=lambda family: family)
@pytest.mark.parametrize("family", "xxyyy")
def test_families(family): pass

@pytest.mark.compiled(per="elsewhere")
def test_elsewhere(): pass

@pytest.mark.ranks(of="file")
def test_first_of_the_file(): pass

@pytest.mark.ranks(of="file")
def test_second_of_the_file(): pass

@pytest.mark.onnx(keep=2)
@pytest.mark.parametrize("a", range(4))
def test_some(a): pass

def test_alone(): pass
"""

PLACED = """
import pytest, torch
from tests.poison import leaf

def is_as(device, dtype):
    made = torch.rand(2, requires_grad=True)
    return made.is_leaf and leaf(1.0).dtype == dtype and made.device.type == leaf(1.0).device.type == device

def test_plain():
    assert is_as("meta", torch.bfloat16)

@pytest.mark.on_cpu
@pytest.mark.own_dtype("bfloat16")
def test_of_the_cpu():
    assert is_as("cpu", torch.float64)

@pytest.mark.own_dtype("float16")
def test_other():
    assert is_as("meta", torch.bfloat16)
"""


def run(folder: Path, *options: str) -> str:
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", *PLUGINS, "--strict-markers", *options]
    command += ["--rootdir", str(folder), str(folder / "test_it.py")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def collected(folder: Path, effort: str) -> list[str]:
    (folder / "test_it.py").write_text(TESTS, encoding="utf-8")
    return run(folder, "--collect-only", "-q", "--effort", effort).splitlines()


def test_the_full_run_keeps_everything(tmp_path: Path) -> None:
    lines = collected(tmp_path, "full")
    assert sum("::" in line for line in lines) == 64 + 9 + 5 + 1 + 2 + 4 + 1
    assert not any("left to the full run" in line for line in lines)


def test_the_light_run_keeps_what_the_rules_say(tmp_path: Path) -> None:
    lines = collected(tmp_path, "light")
    kept = [line.partition("::")[2] for line in lines if "::" in line]
    many = [name for name in kept if name.startswith("test_many")]
    assert len(many) == 3
    assert len({name.partition("-")[2] for name in many}) == 3  # of 8 values of the inner parameter
    assert [name for name in kept if name not in many] == [
        *(f"test_every[{i}]" for i in range(9)),
        "test_families[x0]",
        "test_families[y0]",
        "test_first_of_the_file",
        "test_some[0]",
        "test_some[2]",
        "test_alone",
    ]
    assert (
        "left to the full run (make test-all): 68 tests (1 compiled, 3 dtypes, 2 onnx, 61 parameters, 1 ranks)"
        in lines
    )
    assert any("18/86 tests collected (68 deselected)" in line for line in lines)


def test_the_header_says_how_long_it_took_the_last_time(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_one(): pass\n", encoding="utf-8")
    first, second = run(tmp_path), run(tmp_path)
    said = "effort full: everything, with all samples (make test-all)"
    assert f"{said}\n" in first
    assert f"{said}; the last time: 1 tests in 0 min " in second


def test_defaults_but_of_what_is_marked(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PLACED, encoding="utf-8")
    assert "3 passed" in run(tmp_path, "--device", "meta", "--dtype", "bfloat16")
