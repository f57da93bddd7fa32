"""Beside a PyTorch or NumPy that is too old, the import fails in one line; a Numba too old is not used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from maskgrad.compatibility import refusal_of_numba, refusal_of_numpy, refusal_of_torch
from maskgrad.versions import NUMBA, NUMPY, TORCH_MINORS, TORCH_OF_XLA

SOURCE = Path(__file__).parents[2] / "src"


@pytest.mark.parametrize(
    "version", ["2.9.0", "2.9.1+cpu", "2.12.0a0+git1", *TORCH_MINORS, "2.16.0.dev1", "3.0", "mine"]
)
def test_what_is_taken(version: str) -> None:
    assert refusal_of_torch(version) == ""


@pytest.mark.parametrize("version", ["1.13.1", "2.8.0+cu128", "2.10.0", "2.11.0a0+git1"])
def test_what_is_refused(version: str) -> None:
    assert refusal_of_torch(version) == (
        f"maskgrad needs PyTorch {TORCH_MINORS[0]} or newer (or {TORCH_OF_XLA}, for PyTorch/XLA), and found {version}; "
        f"install one with: pip install --upgrade 'torch>={TORCH_MINORS[0]}'"
    )


def test_numpy_and_numba() -> None:
    assert refusal_of_numpy(NUMPY) == refusal_of_numba(f"{NUMBA}.1") == ""
    assert refusal_of_numpy("1.26.4") == (
        f"maskgrad needs NumPy {NUMPY} or newer, and found 1.26.4; "
        f"install one with: pip install --upgrade 'numpy>={NUMPY}'"
    )
    assert f"needs Numba {NUMBA} or newer, and found 0.60.0; " in refusal_of_numba("0.60.0")


def _run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``code`` with what is in ``folder`` first among modules."""
    begin = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(SOURCE)!r}]\n"
    return subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, check=False)


# The modules made here have nothing but a version: whatever touched them before the check would fail otherwise.
@pytest.mark.parametrize(
    ("torch", "numpy", "refused"),
    [("2.11.0+cpu", "2.4.6", refusal_of_torch), ("2.13.0", "1.26.4", refusal_of_numpy)],
)
def test_the_import_fails_before_anything_else(
    tmp_path: Path, torch: str, numpy: str, refused: object
) -> None:
    (tmp_path / "torch.py").write_text(f'__version__ = "{torch}"\n', encoding="utf-8")
    (tmp_path / "numpy.py").write_text(f'__version__ = "{numpy}"\n', encoding="utf-8")
    done = _run("import maskgrad", tmp_path)
    expected = refused(torch if refused is refusal_of_torch else numpy)
    assert done.stderr.splitlines()[-1] == f"ImportError: {expected}"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("__version__ = '0.60.0'", refusal_of_numba("0.60.0")),
        ("raise SystemError('initialization failed')", "initialization failed"),
    ],
    ids=["too old", "broken"],
)
def test_without_a_numba_that_works_the_reference_runs_and_says_why(
    tmp_path: Path, module: str, said: str
) -> None:
    (tmp_path / "numba.py").write_text(module, encoding="utf-8")
    done = _run(
        "import torch, maskgrad as mg\n"
        "assert mg.masked(torch.ones(400, 400), torch.ones(400, 400, dtype=torch.bool)).sum() == 160000\n",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert f"numba cannot be used ({said})" in done.stderr
