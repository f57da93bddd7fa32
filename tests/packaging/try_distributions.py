"""Build the wheel and the sdist, and try each from an empty environment, outside the checkout: `make dist`."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"


def build() -> None:
    """Make both anew; the wheel is built from the sdist, which shows that the sdist has all that it takes."""
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT))
    _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, _files()))
    (wheel,) = DIST.glob("*.whl")
    found = [name for name in zipfile.ZipFile(wheel).namelist() if strangers(name)]
    if found:
        sys.exit(f"the wheel should hold the library only, and holds {', '.join(found)}")


def strangers(name: str) -> bool:
    """Whether a file of the wheel belongs to a program, a measurement or a test instead of the library."""
    parts = Path(name).parts
    inside = parts[0] == "maskgrad" or parts[0].endswith(".dist-info")
    return not inside or bool({"benchmarks", "examples", "movielens", "flights", "tests"} & set(parts))


def attempt(distribution: Path, constraints: list[str]) -> None:
    """Install it into an empty environment, run the examples of the README, and the command."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder) / "environment", with_pip=True)
        bin_ = Path(folder) / "environment" / "bin"
        pip = (str(bin_ / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check")
        _run(*pip, "install", *constraints, str(distribution), cwd=folder)
        examples = Path(folder) / "examples.txt"
        examples.write_text(doors((ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8")
        _run(str(bin_ / "python"), "-m", "doctest", str(examples), cwd=folder)
        for command in ("doctor", "info", "warmup"):
            _run(str(bin_ / "maskgrad"), command, "--help", cwd=folder)
        _run(str(bin_ / "maskgrad"), "info", cwd=folder)


def doors(page: str) -> str:
    """The blocks of Python in a page, one below the other."""
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    if not blocks or not all(">>>" in block for block in blocks):
        raise ValueError("the page has no blocks of Python with prompts")
    return "\n".join(blocks)


def _files() -> list[Path]:
    files = [*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")]
    if len(files) != 2:
        sys.exit(f"{DIST} should hold one wheel and one sdist, and holds {[file.name for file in files]}")
    return files


def _run(*command: str, cwd: str | Path = ROOT) -> None:
    sys.stdout.write(f"{' '.join(command)}\n")
    sys.stdout.flush()
    # The checkout must not be found by what runs outside of it.
    subprocess.run(
        command, cwd=cwd, check=True, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    )


def main() -> None:
    """Read the options, build unless told that it is done, and try both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--built", action="store_true", help="take what is in dist/; build nothing")
    parser.add_argument(
        "--constraint", help="versions to install, as pip reads them; the newest if not given"
    )
    options = parser.parse_args()
    if not options.built:
        build()
    for file in _files():
        attempt(file, ["--constraint", str(Path(options.constraint).resolve())] if options.constraint else [])
    sys.stdout.write("wheel and sdist are right\n")


if __name__ == "__main__":
    main()
