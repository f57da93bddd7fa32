"""How much the tests try: ``pytest --effort light`` (`make test`) or ``--effort full`` (`make test-all`, the default).

What the light run leaves to the full one is decided by rules, never by which tests pass:

* Each entry of the operator database meets all laws, with fewer samples, masks and kinds of garbage
  (``tests/laws/effort.py``). Such tests have the marker ``every``.
* A test with one of the markers :data:`MULTIPLIED` does once more, on other dtypes, layouts, compilers or processes,
  what another test has done. Of those that one function makes, the light run keeps the first, or the first of each
  ``per``, which takes parameters of the test by their names; of a whole file, if so marked; ``keep`` of them instead of
  one, spread evenly; none, if other tests represent them::

      @pytest.mark.dtypes(per=lambda entry: (entry.operation.family, entry.dtype))
      @pytest.mark.onnx(of="file", keep=6)
      @pytest.mark.compiled(per="elsewhere")

* Of all other tests that one function makes, it keeps :data:`AT_MOST`, spread evenly from the first to the last.
* Hypothesis draws fewer examples (:func:`examples`).

What is left out counts as deselected, and the summary says how much of it was left to the full run. The header says
what a run tries, and how long the same command took the last time.
"""

from __future__ import annotations

import hashlib
import inspect
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from typing import Any

import pytest

__all__ = ["MULTIPLIED", "examples", "is_light"]

#: Markers of tests that multiply what others have shown, and on what they do so.
MULTIPLIED = {
    "dtypes": "the laws in other dtypes",
    "forms": "the laws on other strides and shapes",
    "layouts": "on other storage layouts",
    "compiled": "through torch.compile, torch.export or vmap",
    "onnx": "in files run by ONNX Runtime",
    "ranks": "in several processes",
    "demo": "whole programs of the command line",
    "processes": "in a fresh interpreter, which imports PyTorch again",
    "large": "on millions of entries, or in thousands of programs",
    "corpus": "programs that the doctor examines, packages that are compared with",
}

#: … and what carries one of them by the folder or file it is in, if the test says nothing else.
BY_PATH = {
    "tests/unit/kernels/test_compiled.py": pytest.mark.compiled(of="file", keep=4),
    "tests/unit/distributed": pytest.mark.ranks(of="file"),
    "tests/unit/export/test_onnx": pytest.mark.onnx(of="file", keep=6),
    "tests/conformance/test_compiled_layouts.py": pytest.mark.compiled(of="file"),
    "tests/conformance/test_compiled": pytest.mark.compiled,
    "tests/unit/test_compilation.py": pytest.mark.compiled(of="file", keep=6),
    "tests/integration/test_compiled_steps.py": pytest.mark.compiled(of="file", keep=4),
    "examples/movielens/tests/test_program.py": pytest.mark.demo,
    "tests/unit/masked_tensor/torch_patches/test_dynamo.py": pytest.mark.processes(of="file"),
}

#: Odd: where parameters multiply each other, it meets most values of each.
AT_MOST = 3

#: What each effort tries.
TRIES = {
    "light": "every operation and law, with few samples (make test)",
    "full": "everything, with all samples (make test-all)",
}

_light = False
_left: Counter[str] = Counter()
_BEGAN = pytest.StashKey[float]()


def is_light() -> bool:
    return _light


def examples(usual: int) -> int:
    """How many examples Hypothesis draws where ``usual`` are enough to be fairly sure: fewer in the light run."""
    return max(usual // 8, 8) if _light else usual


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--effort",
        choices=("light", "full"),
        default="full",
        help="light: fewer samples and examples, few of the tests that one function makes; full (default): everything",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Before the tests are imported, whose samples and settings depend on it."""
    global _light
    _light = config.getoption("effort") == "light"
    config.addinivalue_line("markers", "every: the light run keeps all of them; see tests/effort.py")
    for name, what in MULTIPLIED.items():
        config.addinivalue_line("markers", f"{name}(of=None, per=None, keep=1): {what}; see tests/effort.py")


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_BEGAN] = time.monotonic()


def pytest_report_header(config: pytest.Config) -> str:
    effort = config.getoption("effort")
    number, seconds = config.cache.get(_key(config), (0, 0)) if hasattr(config, "cache") else (0, 0)
    last = f"; the last time: {number} tests in {seconds // 60} min {seconds % 60} s" if number else ""
    return f"effort {effort}: {TRIES[effort]}{last}"


def _key(config: pytest.Config) -> str:
    """Of the same tests with the same effort, in as many processes."""
    asked = [config.getoption(name, None) for name in ("effort", "numprocesses", "keyword", "file_or_dir")]
    return f"effort/{hashlib.sha256(repr(asked).encode()).hexdigest()}"  # many paths are too long for a name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the full run what the rules say."""
    for item in items:
        path = (
            item.path.relative_to(config.rootpath).as_posix()
            if item.path.is_relative_to(config.rootpath)
            else ""
        )
        mark = next((mark for start, mark in BY_PATH.items() if path.startswith(start)), None)
        if mark is not None and _kind_of(item) is None:
            item.add_marker(mark)
    if not _light:
        return
    groups: defaultdict[Hashable, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[_group_of(item)].append(item)
    kept = {id(item) for group in groups.values() for item in _kept_of(group)}
    left = [item for item in items if id(item) not in kept]
    items[:] = [item for item in items if id(item) in kept]
    config.hook.pytest_deselected(items=left)
    _left.update(kind.name if (kind := _kind_of(item)) else "parameters" for item in left)


def _kind_of(item: pytest.Item) -> pytest.Mark | None:
    """The marker that decides; the nearest one."""
    return next(
        (mark for mark in item.iter_markers() if mark.name == "every" or mark.name in MULTIPLIED), None
    )


def _group_of(item: pytest.Item) -> Hashable:
    """What a test has in common with those of which the light run keeps some."""
    kind = _kind_of(item)
    options = kind.kwargs if kind else {}
    of = str(item.path) if options.get("of") == "file" else item.nodeid.partition("[")[0]
    per: Callable[..., Hashable] | str | None = options.get("per")
    kind_name = kind.name if kind else None
    if not callable(per):
        return of, kind_name, per
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return of, kind_name, per(**{name: parameters.get(name) for name in inspect.signature(per).parameters})


def _kept_of(group: list[pytest.Item]) -> list[pytest.Item]:
    kind = _kind_of(group[0])
    if kind is not None and kind.name == "every":
        return group
    if kind is not None and kind.kwargs.get("per") == "elsewhere":
        return []
    most = kind.kwargs.get("keep", 1) if kind else AT_MOST
    return group if len(group) <= most else [group[i * len(group) // most] for i in range(most)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of pytest-xdist tells the one that writes the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_to_the_full_run"] = dict(_left)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """All processes have collected the same: any of them can tell."""
    told = getattr(node, "workeroutput", {}).get("left_to_the_full_run", {})
    _left.clear()
    _left.update(told)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    seconds = round(time.monotonic() - config.stash[_BEGAN])
    number = sum(len(terminalreporter.getreports(kind)) for kind in ("passed", "failed", "skipped"))
    if hasattr(config, "cache") and number and not hasattr(config, "workerinput"):
        config.cache.set(_key(config), (number, seconds))
    if _light:
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(_left.items()))
        terminalreporter.write_line(f"left to the full run (make test-all): {_left.total()} tests ({kinds})")
