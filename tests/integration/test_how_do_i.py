"""The programs of docs/how_do_i print what their pages show, and that of docs/distributed.md runs as it says."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "how_do_i"
PROGRAMS = sorted((PAGES / "programs").glob("*.py"))
# Their processes import the program again, under its own name.
#: pages whose program needs a package that only tests/ecosystem installs
ELSEWHERE = {"large_tables"}
WITH_RANKS = {path for path in PROGRAMS if "multiprocessing.spawn" in path.read_text(encoding="utf-8")}


def _shown(program: Path) -> str:
    return program.with_suffix(".txt").read_text(encoding="utf-8")


@pytest.mark.every
@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")
@pytest.mark.parametrize("program", [p for p in PROGRAMS if p not in WITH_RANKS], ids=lambda path: path.stem)
def test_a_program_prints_what_its_page_shows(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(program), run_name="__main__")
    assert capsys.readouterr().out == _shown(program)


def _output(arguments: list[str], where: Path) -> str:
    """What Python writes in a process of its own, which may start others."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.ranks(per="elsewhere")
@pytest.mark.parametrize("program", sorted(WITH_RANKS), ids=lambda path: path.stem)
def test_a_program_with_processes_prints_what_its_page_shows(program: Path, tmp_path: Path) -> None:
    assert _output([str(program)], tmp_path) == _shown(program)


@pytest.mark.ranks(per="elsewhere")
def test_torchrun_runs_the_program_of_the_page_on_ranks(tmp_path: Path) -> None:
    page = (PAGES.parent / "distributed.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(# train\.py\n.*?)```", page, re.DOTALL)
    assert found is not None
    (tmp_path / "train.py").write_text(found[1], encoding="utf-8")
    started = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--log-dir", "logs"]
    output = _output([*started, "train.py"], tmp_path)
    (line,) = [line for line in output.splitlines() if line.startswith("last loss")]  # rank 0 speaks
    assert float(line.split()[-1]) < 0.05


def test_every_program_has_a_page_and_every_page_a_program() -> None:
    pages = {
        path.stem: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md") if path.stem != "index"
    }
    assert len(pages) >= 25
    assert set(pages) == {path.stem.removesuffix("_on_ranks") for path in PROGRAMS} | ELSEWHERE
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- .*\((\w+)\.md\)$", index, re.MULTILINE)
    assert sorted(listed) == sorted(pages)
    for name, page in pages.items():
        assert re.match(r"# .*\?\n", page), f"the title of {name} is a question"
        if name in ELSEWHERE:
            assert f"<!-- file: ../../tests/ecosystem/programs/{name}.py -->" in page
            continue
        assert f"<!-- file: programs/{name}.py -->" in page
        assert f"<!-- file: programs/{name}.txt -->" in page
