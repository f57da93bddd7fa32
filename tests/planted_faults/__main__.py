"""``python -m tests.planted_faults [name …]``: plant each fault, and see whether the tests notice.

The faults are planted in a copy of the tree, one at a time. First all tests of the file are run, then the laws with few
samples (see ``rooms.py``), and then, if both pass, the light run; each stops at its first failure. Importing PyTorch
takes longer than most of these runs: it is imported once, and each run is a fork of the process that has done so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from compileall import compile_dir
from importlib import import_module
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

from rich.console import Console

from tests.planted_faults.fault import ROOT, SOURCES, Fault
from tests.planted_faults.faults import FAULTS
from tests.planted_faults.rooms import runs_for
from tests.planted_faults.table import PAGE, RESULTS, table

IGNORED = shutil.ignore_patterns(
    ".git", ".venv*", "*-report", "_build", "generated", ".*_cache", "__pycache__", "*.nb?"
)
# but for the tests of these faults, which see each of them in the text
OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "--ignore", "tests/unit/test_planted_faults.py")
# what a plug-in's import before pytest is worth a warning for
QUIET = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
PRELOADED = (
    *("torch", "torch._dynamo", "torch._inductor.config", "networkx", "numba", "hypothesis", "sybil"),
    "torch.testing._internal.common_methods_invocations",
)
# of the processor's time, not the clock's; a loop that does not end is noticed, too
SECONDS = 600
# what pytest exits with when tests fail, when it stops at the first that does, when nothing can be imported, and when
# all pass
CAUGHT, STOPPED, UNUSABLE, MISSED = 1, 2, 4, 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.planted_faults", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="which faults, by a part of their name; all if none is given"
    )
    parser.add_argument(
        "--tree", type=Path, default=Path(tempfile.gettempdir()) / "planted-faults", help="the copy"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results are kept")
    parser.add_argument("--resume", action="store_true", help="only faults without a result")
    parser.add_argument("--missed", action="store_true", help="only faults that no test has seen yet")
    parser.add_argument(
        "--runs",
        type=int,
        default=3,
        help="1: the tests of the file alone; 2: and the laws; 3: and the light run",
    )
    return parser.parse_args()


def main() -> int:
    wanted, console = arguments(), Console(width=160)
    results: dict[str, dict[str, Any]] = (
        json.loads(wanted.out.read_text(encoding="utf-8")) if wanted.out.exists() else {}
    )
    results = {fault.name: results[fault.name] for fault in FAULTS if fault.name in results}
    chosen = [
        fault
        for fault in FAULTS
        if (not wanted.names or any(name in fault.name for name in wanted.names))
        and not fault.equivalent
        and not (wanted.resume and fault.name in results)
        and not (wanted.missed and results.get(fault.name, {}).get("outcome") not in ("missed", "undecided"))
    ]
    copied(wanted.tree)
    # as tests/conftest.py does, which comes too late here
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # a graph on disk does not know of the fault
    for name in PRELOADED:
        import_module(name)
    for number, fault in enumerate(chosen, 1):
        result = outcome(wanted.tree, fault, wanted.runs)
        results[fault.name] = result
        console.print(
            f"{number}/{len(chosen)} {result['outcome']:>7} {fault.name}  [dim]{result['test']}[/dim]"
        )
        wanted.out.write_text(json.dumps(results, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
    console.print(table(wanted.out), markup=False)
    if wanted.out == RESULTS:
        PAGE.write(table())
    return int(any(results[fault.name]["outcome"] != "caught" for fault in chosen))


def copied(tree: Path) -> None:
    """The tree, beside what is kept of an earlier copy: compiled loops, which take minutes to compile."""
    for path in tree.rglob("*.py"):
        if not (ROOT / path.relative_to(tree)).exists():
            path.unlink()
    shutil.copytree(ROOT, tree, ignore=IGNORED, dirs_exist_ok=True)
    # by the hash of a file: two faults of one size may be planted within one second
    compile_dir(tree / "src", quiet=1, force=True, invalidation_mode=PycInvalidationMode.CHECKED_HASH)


def outcome(tree: Path, fault: Fault, runs: int) -> dict[str, Any]:
    """Run the tests on a tree with the fault, and take it out again."""
    path, log = tree / SOURCES / fault.file, tree / "planted.log"
    text, times = path.read_text(encoding="utf-8"), path.stat()
    assert text.count(fault.old) == 1, fault
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    began = time.perf_counter()
    code = MISSED
    try:
        for effort, run in list(zip(("full", "light"), runs_for(fault), strict=True))[:runs]:
            if run and code == MISSED:
                options = ["--effort", effort, *OPTIONS, *QUIET, *shlex.split(run)]
                code = _in_a_fork(tree, log, fault.name, options)
        if code == MISSED and runs >= 3:
            code = _light_run(tree, log, fault.name)
    finally:
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # compiled loops of this file are not stale
    found, test = judged(code, log.read_text(encoding="utf-8", errors="replace"), complete=runs >= 3)
    return {"outcome": found, "test": test, "seconds": round(time.perf_counter() - began)}


def judged(code: int, text: str, complete: bool) -> tuple[str, str]:
    """What came of a fault, and the first test that sees it; ``complete``: all runs were asked."""
    if -code in (signal.SIGXCPU, signal.SIGSEGV, signal.SIGABRT):
        return "caught", signal.Signals(-code).name
    if code == MISSED:
        return "missed" if complete else "undecided", ""
    failed = re.search(r"^(?:FAILED|ERROR|ImportError while loading) (\S+)", text, re.MULTILINE)
    if failed and code in (CAUGHT, STOPPED, UNUSABLE):
        return "caught", failed.group(1).removeprefix("tests/")
    return f"exit {code}", ""


def _in_a_fork(tree: Path, log: Path, fault: str, options: list[str]) -> int:
    """The exit code of pytest, or minus the number of the signal that ended it."""
    child = os.fork()
    if not child:
        os.chdir(tree)
        # the copy comes before the tree that is installed
        sys.path[:0] = [str(tree / "src"), str(tree)]
        os.environ |= {
            "PYTHONPATH": f"{tree / 'src'}:{tree}",
            "CI": "1",
            "PLANTED_FAULT": fault,
            "OMP_NUM_THREADS": "1",
        }
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 10))
        out = log.open("wb")
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        code = 3
        try:
            import pytest

            code = int(pytest.main(options))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _light_run(tree: Path, log: Path, fault: str) -> int:
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "CI": "1", "PLANTED_FAULT": fault}
    command = [sys.executable, "-m", "pytest", "--effort", "light", *OPTIONS, "-n=auto", "--maxprocesses=8"]
    with log.open("w") as out:
        return subprocess.run(
            command, cwd=tree, env=environment, stdout=out, stderr=out, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
