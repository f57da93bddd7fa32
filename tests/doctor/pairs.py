"""The corpus: programs with a mistake beside the same programs fixed, one file a pair in ``corpus/``.

A file of the corpus is plain PyTorch and has

* a docstring: one sentence that says what goes wrong, and ``Thread:``, where somebody met it, as
  ``owner/repository#number``, or ``none found; `` and what was looked for;
* ``kind``, the kind of finding that is expected, one of ``maskgrad.doctor``'s;
* ``batch``, and ``padding`` or ``documents`` where they cannot be recognised; ``is_causal = True`` where the future is
  asked for; ``model`` where the program has one module for all;
* ``wrong(batch)`` and ``fixed(batch)``, which return the loss;
* the comment ``# leak`` on the line that must be named; for kinds that name no line, ``module`` instead.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from maskgrad import doctor
from maskgrad.errors import ExaminationError

__all__ = ["CORPUS", "Outcome", "Pair", "described", "diagnose", "examine", "load", "pairs"]

#: arguments of the examination that a file may set
DECLARED = ("padding", "documents", "model")
CORPUS = Path(__file__).parent / "corpus"
THREAD = re.compile(r"^Thread: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Pair:
    """One file of the corpus, as it was written down."""

    path: Path
    title: str
    thread: str
    kind: str
    module: str | None
    marked: frozenset[int]

    @property
    def name(self) -> str:
        return self.path.stem


@dataclass(frozen=True)
class Outcome:
    """What the doctor says of both programs of a pair."""

    found: bool
    at_the_line: bool
    named: tuple[str, ...]
    alarms: tuple[str, ...]

    @property
    def verdict(self) -> str:
        return (
            "missed"
            if not self.found
            else "found at its line"
            if self.at_the_line
            else "found at another line"
        )


def pairs() -> list[Pair]:
    return [_read(path) for path in sorted(CORPUS.glob("*.py"))]


def _read(path: Path) -> Pair:
    """Without running it: a file that does not run is one failing test, not all of them."""
    text = path.read_text(encoding="utf-8")
    title, thread = text.removeprefix('"""').partition("\n")[0], THREAD.search(text)
    declared = {
        name: found[1]
        for name in ("kind", "module")
        if (found := re.search(rf'^{name} = "(.+)"$', text, re.M))
    }
    marked = frozenset(n for n, line in enumerate(text.splitlines(), 1) if line.endswith("  # leak"))
    return Pair(path, title, thread[1] if thread else "", declared["kind"], declared.get("module"), marked)


def load(path: Path) -> ModuleType:
    """A program with its own parameters, the same ones every time."""
    torch.default_generator.manual_seed(0)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def examine(program: ModuleType, step: str) -> doctor.Report:
    declared = {name: getattr(program, name, None) for name in DECLARED}
    causal = getattr(program, "is_causal", False)
    return doctor.examine(getattr(program, step), program.batch, causal=causal, **declared)


def diagnose(pair: Pair) -> Outcome:
    try:
        wrong, fixed = (examine(load(pair.path), step).findings for step in ("wrong", "fixed"))
    except ExaminationError as error:
        return Outcome(False, False, (f"refused: {error}",), ())
    of_kind = [finding for finding in wrong if finding.kind == pair.kind]
    if pair.module is None:
        right = bool(of_kind) and Path(of_kind[0].file) == pair.path and of_kind[0].line in pair.marked
    else:
        right = any(pair.module in (finding.module or "") for finding in of_kind)
    return Outcome(bool(of_kind), right, tuple(map(described, wrong)), tuple(map(described, fixed)))


def described(finding: doctor.Finding) -> str:
    where = f"{Path(finding.file).name}:{finding.line}" if finding.file else finding.module
    return f"{finding.kind} at {where}"
