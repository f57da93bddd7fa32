"""What the numbers of a run depend on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import torch

import maskgrad

__all__ = ["is_busy", "provenance"]

#: packages whose version matters: the libraries that compute
_LIBRARIES = ("numba", "scipy", "fbgemm-gpu-cpu")
_PACKAGE = Path(maskgrad.__file__).resolve().parent


def provenance() -> dict[str, str]:
    """Machine, versions, date, and how busy the machine was before anything was measured."""
    facts = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "load": _load(),
        "system": platform.system(),
        "python": platform.python_version(),
        "maskgrad": maskgrad.__version__,
        "torch": torch.__version__,
    }
    return facts | {library: _version(library) for library in _LIBRARIES}


def is_busy(facts: dict[str, str]) -> bool:
    """Whether other programs kept more than a quarter of the cores busy when ``facts`` were taken."""
    return bool(facts.get("load")) and float(facts["load"]) > 0.25 * int(facts["cores"])


def _load() -> str:
    try:
        return f"{os.getloadavg()[0]:.2f}"
    except (OSError, AttributeError):  # Windows knows no such number
        return ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _commit() -> str:
    """Which commit of maskgrad runs; empty for an installed release, wherever it is installed."""
    root = _PACKAGE.parent.parent
    if _git("rev-parse", "--show-toplevel") != str(root) or _PACKAGE.parent.name != "src":
        return ""
    changed = "+changes" if _git("status", "--porcelain", "--", "src") else ""
    return (_git("rev-parse", "--short", "--verify", "-q", "HEAD") or "none") + changed


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_PACKAGE), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
