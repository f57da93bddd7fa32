"""Promises about the repository itself: small files, telling names, a light import, what a wheel carries."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.resources
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.try_distributions import strangers
from tests.project_file import EXTRAS, PROJECT, PYPROJECT, ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))
LINE_LIMIT = 400
FUNCTION_LIMIT = 80
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc"}
HEAVY = {
    "numba",
    "llvmlite",
    "triton",
    "awkward",
    "matplotlib",
    "narwhals",
    "pandas",
    "polars",
    "pyarrow",
    "scipy",
    "typer",
    "rich",
    "onnx",
    "onnxscript",
    "onnxruntime",
}


def test_the_sources_are_found() -> None:
    assert len(SOURCES) > 1


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_source_file_is_about_one_idea(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LINE_LIMIT, f"{path.name} has {lines} lines; split it by idea (the limit is {LINE_LIMIT})"


def test_each_room_is_within_its_lines() -> None:
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    most = {
        room: int(lines.replace(",", ""))
        for room, lines in re.findall(r"^\| `src/(maskgrad/\w+)/` \|.*\| ([\d,]+) \|$", text, re.MULTILINE)
    }
    (most["maskgrad"],) = (
        int(n.replace(",", "")) for n in re.findall(r"at most ([\d,]+) lines in all", text)
    )
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    found = {
        room: sum(n for path, n in lines.items() if ROOT / "src" / room in path.parents) for room in most
    }
    assert len(most) > len(list((ROOT / "src" / "maskgrad").glob("*/__init__.py")))
    assert {room: n for room, n in found.items() if n > most[room]} == {}


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{path.name}: {node.name}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno - node.lineno >= FUNCTION_LIMIT  # type: ignore[operator]
    ]
    assert long == []


def test_names_tell_what_is_inside() -> None:
    python_files = [
        *SOURCES,
        *(path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")),
    ]
    parts = {part for path in python_files for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not parts & NAMES_THAT_SAY_NOTHING


def test_every_package_says_what_it_is() -> None:
    packages = [path for path in SOURCES if path.name == "__init__.py"]
    assert not [path for path in packages if not path.read_text(encoding="utf-8").startswith(('"""', 'r"""'))]


@pytest.mark.processes(of="file")
def test_importing_maskgrad_imports_nothing_heavy() -> None:
    # PyTorch is imported first: what it brings along by itself is not ours to answer for.
    before = "import json, sys, torch; before = set(sys.modules)"
    after = "import maskgrad; print(json.dumps(sorted(set(sys.modules) - before)))"
    imported = {name.partition(".")[0] for name in json.loads(_run_python(f"{before}; {after}").stdout)}
    assert "maskgrad" in imported
    assert not imported & HEAVY


@pytest.mark.processes(of="file")
def test_importing_maskgrad_is_silent_and_touches_no_device() -> None:
    done = _run_python("import maskgrad, torch; assert not torch.cuda.is_initialized()")
    assert done.stdout == ""
    assert "maskgrad" not in done.stderr


def _run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


def _built_where_tests_are_collected() -> list[str]:
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()]
    collected = tuple(PYPROJECT["tool"]["pytest"]["ini_options"]["testpaths"])
    return [path for path in ignored if path.startswith(collected)]


def test_what_make_builds_is_not_collected(pytestconfig: pytest.Config) -> None:
    """`make docs` copies programs of examples/ beside its pages; there they are no tests, nor can they be imported."""
    built = _built_where_tests_are_collected()
    assert built == ["docs/_build", "docs/generated"]
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "conftest.py"))
    assert conftest is not None
    assert set(built) <= set(conftest.collect_ignore)


def test_type_checkers_are_told_of_the_annotations() -> None:
    assert importlib.resources.files("maskgrad").joinpath("py.typed").is_file()


def test_the_package_is_the_library() -> None:
    """No demonstration and no benchmark is shipped; `make dist` looks into the wheel itself."""
    assert PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["src/maskgrad"]}
    shipped = [path.relative_to(ROOT / "src").as_posix() for path in SOURCES]
    assert not [path for path in shipped if strangers(path)]


def test_what_does_not_belong_into_the_wheel_is_seen() -> None:
    assert strangers("maskgrad/benchmarks/families/small.py")
    assert strangers("maskgrad/cli/movielens/run.py")
    assert not strangers("maskgrad/cli/main.py")
    assert strangers("examples/movielens/run.py")


def test_the_licence_is_shipped() -> None:
    assert importlib.metadata.metadata("maskgrad")["License-Expression"] == "BSD-3-Clause"
    shipped = [str(path) for path in importlib.metadata.files("maskgrad") or []]
    assert any(path.endswith("licenses/LICENSE") for path in shipped)


def test_the_readme_opens_three_doors_then_says_how_to_install_then_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    assert [language for language, _ in blocks] == ["text", *["diff", "python"] * 3, "sh", "sh"]
    for _, diff in blocks[1:7:2]:  # one line out, one line in
        assert [line[0] for line in diff.splitlines()] == ["-", "+"]
    lines = [
        [line.partition("#")[0].strip() for line in text.splitlines() if line.strip()] for _, text in blocks
    ]
    assert lines[7] == ["pip install maskgrad"]
    assert lines[8] == ["make demo", "make test"]
    assert len(text.splitlines()) <= 120
    assert max(len(line) for _, block in blocks for line in block.splitlines()) <= 88, (
        "GitHub shows so many columns"
    )
    assert max(line.count("|") for line in text.splitlines() if line.startswith("|")) <= 6 + 1
    assert f"({PROJECT['urls']['Documentation']})" in text


def test_every_extra_that_a_target_installs_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = ",".join(re.findall(r"^\w+_extras := (.*)$", makefile, re.MULTILINE)).split(",")
    assert named
    assert set(named) <= set(EXTRAS)


def test_every_version_make_installs_is_bounded() -> None:
    named = set()
    for path in ROOT.glob("constraints*.txt"):
        constraints = path.read_text(encoding="utf-8")
        lines = [
            line.strip() for line in constraints.splitlines() if line.strip() and not line.startswith("#")
        ]
        assert all(re.fullmatch(r"[\w-]+(==|<)[\d.]+", line) for line in lines)
        assert any(line.startswith("torch==") for line in lines)
        named |= {re.split(r"==|<", line)[0] for line in lines}
    required = [*PROJECT["dependencies"], *(entry for extra in EXTRAS.values() for entry in extra)]
    assert {re.split(r"[<>=!;\[ ]", entry)[0] for entry in required} <= named


def test_the_citation_names_the_licence_and_leaves_the_version_to_the_tag() -> None:
    import yaml

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert "version" not in citation
    assert citation["license"] == PYPROJECT["project"]["license"]


def test_forms_for_issues_are_forms() -> None:
    import yaml

    forms = [path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= form.keys()
        assert len({field["id"] for field in form["body"]}) == len(form["body"])
    assert len(forms) == 2


def test_the_map_names_what_is_there() -> None:
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:src|tests|examples|benchmarks|docs)/[^`]*)`", text)
    assert not [path for path in named if not (ROOT / path).exists()]
    rooms = {
        f"src/maskgrad/{path.parent.name}/" for path in (ROOT / "src" / "maskgrad").glob("*/__init__.py")
    }
    assert rooms <= set(named)


def test_the_map_has_the_order_of_imports() -> None:
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    order = re.search(r"```text\n(versions.*?)```", text, re.DOTALL)
    assert order
    drawn = [sorted(part.replace(",", " ").split()) for part in order[1].split("←")]
    (layers,) = (
        contract["layers"]
        for contract in PYPROJECT["tool"]["importlinter"]["contracts"]
        if "layers" in contract
    )
    words = [sorted(re.findall(r"(\w+)(?![\w.])", layer)) for layer in reversed(layers)]
    assert drawn == [
        [name for name in layer if name != "compatibility"]
        for layer in words
        if layer != ["optional_packages"]
    ]
