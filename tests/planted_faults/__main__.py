"""``python -m tests.planted_faults [number …]``: plant each fault, and see whether the light run notices.

The faults are planted in a copy of the tree; each run of the tests stops at the first failure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.planted_faults.faults import FAULTS, ROOT, SOURCES, Fault

IGNORED = shutil.ignore_patterns(
    ".git", ".venv*", "*-report", "_build", "generated", ".*_cache", "__pycache__"
)
# but for the test of these faults, which sees each of them in the text
SELF = ("--ignore", "tests/unit/test_planted_faults.py")
LIGHT = ("-m", "pytest", "--effort", "light", "-q", "-x", "-p", "no:cacheprovider", *SELF)
# what pytest exits with when tests fail, when it stops at the first that does, and when all pass
CAUGHT, STOPPED, MISSED = 1, 2, 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.planted_faults", description=__doc__)
    parser.add_argument(
        "numbers", nargs="*", type=int, help="which faults, counted from 1; all if none is named"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("planted-faults.json"), help="where the results are written"
    )
    parser.add_argument("--processes", default="auto", help="how many processes run the tests")
    parser.add_argument("--tests", nargs="*", default=[], help="what to run, if not all tests")
    return parser.parse_args()


def main() -> int:
    wanted, console, results = arguments(), Console(), []
    chosen = [FAULTS[number - 1] for number in wanted.numbers] or list(FAULTS)
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, ignore=IGNORED)
        run = ["--numprocesses", wanted.processes, "--maxprocesses", "8", *wanted.tests]
        for fault in track(chosen, "planting", console=console):
            result = outcome(copy, fault, run)
            results.append(result)
            console.print(f"{result['outcome']:>7} {fault.name}  [dim]{result['test']}[/dim]")
            wanted.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    console.print(table(results))
    return int(any(result["outcome"] != "caught" for result in results))


def outcome(copy: Path, fault: Fault, run: list[str]) -> dict[str, Any]:
    """Run the tests on a tree with the fault, and take it out again."""
    path = copy / SOURCES / fault.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    began = time.perf_counter()
    # the copy comes before the tree that is installed
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *LIGHT, *run],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(text, encoding="utf-8")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return {
        "fault": fault.name,
        "file": fault.file,
        "outcome": "caught"
        if failed and done.returncode in (CAUGHT, STOPPED)
        else "missed"
        if done.returncode == MISSED
        else f"exit {done.returncode}",
        "test": failed.group(1) if failed else "",
        "seconds": round(time.perf_counter() - began),
    }


def table(results: list[dict[str, Any]]) -> Table:
    found = Table("fault", "file", "outcome", "first test that fails", "seconds", title="Planted faults")
    for result in results:
        found.add_row(*(str(result[column]) for column in ("fault", "file", "outcome", "test", "seconds")))
    return found


if __name__ == "__main__":
    sys.exit(main())
