"""Optional packages that are absent, too old, too new or broken: named with what works, and never in the way."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from maskgrad import optional_packages
from maskgrad.errors import MissingDependencyError
from maskgrad.optional_packages import require
from maskgrad.versions import OPTIONAL

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of a module ``scipy`` that is found before the real one."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "scipy.py"


def _message(module: str = "scipy") -> str:
    with pytest.raises(MissingDependencyError) as caught:
        require(module, "mg.from_scipy")
    assert (caught.value.package, caught.value.extra) == ("scipy", "interop")
    return str(caught.value)


def test_what_works_is_given_back(package: Path) -> None:
    package.write_text("__version__ = '99.1'", encoding="utf-8")
    assert isinstance(require("scipy", "mg.from_scipy"), ModuleType)
    assert sys.modules["scipy"].__file__ == str(package)


def test_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert _message("scipy.sparse") == (
        "mg.from_scipy needs the package 'scipy', which is not installed; "
        "install it with: pip install 'maskgrad[interop]'"
    )


def test_another_extra_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingDependencyError, match=r"maskgrad\[bench\]"):
        require("scipy", "the comparison", "bench")


def test_too_old(package: Path) -> None:
    package.write_text("__version__ = '1.13.1'", encoding="utf-8")
    assert _message() == (
        "mg.from_scipy needs the package 'scipy', from version 1.15 on, and found 1.13.1; "
        "install one with: pip install --upgrade 'scipy>=1.15'"
    )


def test_too_new(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIONAL, "scipy", dataclasses.replace(OPTIONAL["scipy"], below="3"))
    package.write_text("__version__ = '3.0.0rc1'", encoding="utf-8")
    assert _message() == (
        "mg.from_scipy needs the package 'scipy', from version 1.15 on and before 3, and found 3.0.0rc1; "
        "install one with: pip install --upgrade 'scipy>=1.15,<3'"
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("raise ValueError('numpy.dtype size changed')", "ValueError: numpy.dtype size changed"),
        ("import not_there", "ModuleNotFoundError: No module named 'not_there'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("1 +", "SyntaxError: invalid syntax"),
        ("raise OSError('x' * 1000)", f"OSError: {'x' * 188}…"),
    ],
)
def test_broken(package: Path, monkeypatch: pytest.MonkeyPatch, line: str, reason: str) -> None:
    monkeypatch.setattr(optional_packages.importlib.metadata, "version", lambda name: "1.17.1")
    package.write_text(line, encoding="utf-8")
    message = _message()
    assert message.startswith(
        f"mg.from_scipy needs the package 'scipy', which is installed (1.17.1) but cannot be imported: {reason}"
    )
    assert message.endswith("; install it again with: pip install --force-reinstall 'scipy>=1.15'")


def test_broken_because_too_old(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional_packages.importlib.metadata, "version", lambda name: "1.10.0")
    package.write_text("raise AttributeError('numpy has no attribute float')", encoding="utf-8")
    assert "from version 1.15 on, and found 1.10.0" in _message()


def test_a_version_that_nobody_knows_is_taken(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise optional_packages.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(optional_packages.importlib.metadata, "version", unknown)
    package.write_text("", encoding="utf-8")
    require("scipy", "mg.from_scipy")


def test_what_the_numbers_do_not_say_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "fbgemm_gpu"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fbgemm_gpu.py").write_text("raise OSError('could not load')", encoding="utf-8")
    with pytest.raises(
        MissingDependencyError, match=r"built for one PyTorch: 1\.8 for 2\.13.*'fbgemm-gpu-cpu>=1\.8'"
    ):
        require("fbgemm_gpu", "the comparison")


# One process for all of them: importing PyTorch takes a second, and an import of any would be seen.
def test_broken_packages_never_break_the_import(tmp_path: Path) -> None:
    for name in [*OPTIONAL, "numba", "llvmlite", "triton", "torch_xla"]:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('{name} is broken')", encoding="utf-8")
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(SOURCE)!r}]\n"
        "import maskgrad as mg, torch\n"
        "ratings = torch.tensor([[5.0, float('nan')]], requires_grad=True)\n"
        "mg.from_nan(ratings).mean().backward()\n"
        "assert ratings.grad.tolist() == [[1, 0]]\n"
        "for call, name in [(mg.from_pandas, 'pandas'), (mg.from_arrow, 'pyarrow'),\n"
        "    (mg.from_scipy, 'scipy'), (mg.plot.pattern, 'matplotlib')]:\n"
        "    try:\n"
        "        call(torch.ones(2, 2, dtype=torch.bool))\n"
        "    except mg.MissingDependencyError as error:\n"
        "        assert f'{name} is broken' in str(error), error\n"
        "    else:\n"
        "        raise AssertionError(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
