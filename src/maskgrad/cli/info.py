"""``maskgrad info``: all that affects results and speed, for bug reports."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import maskgrad
from maskgrad.integrations import installing
from maskgrad.kernels import kernels_in_use
from maskgrad.kernels.selection import numba_works
from maskgrad.masked_tensor.torch_patches.table import PATCHES
from maskgrad.versions import OPTIONAL

__all__ = ["facts", "info"]

#: Packages that affect results and speed, besides the optional ones.
_COMPUTING = ("torch", "numpy", "numba", "llvmlite", "triton")
_OF_PATCHES = ("target", "state", "is_off", "reason", "without", "test")


def info(
    install: Annotated[
        bool,
        typer.Option("--install", help="Import and adapt the packages found, to check that this works."),
    ] = False,
) -> None:
    """Print versions, kernels in use, patches of PyTorch and other packages, devices and threads as JSON."""
    Console().print_json(data=facts(install))


def facts(install: bool = False) -> dict[str, Any]:
    """Return all of it as plain data; with ``install``, other packages are imported and adapted first."""
    importlib.import_module("torch._dynamo")  # this applies patches that wait for it
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return {
        "versions": _versions(),
        "kernels": {device: kernels_in_use(device) for device in devices},
        "patches": [{fact: getattr(patch, fact) for fact in _OF_PATCHES} for patch in PATCHES],
        "integrations": _integrations(install),
        "devices": _devices(),
        "threads": _threads(),
    }


def _versions() -> dict[str, str | None]:
    """By distribution; None if not installed. PyTorch itself gives more details of its build."""
    optional = [package.distribution or name for name, package in OPTIONAL.items()]
    found: dict[str, str | None] = {"maskgrad": maskgrad.__version__, "python": platform.python_version()}
    found |= {distribution: _version(distribution) for distribution in (*_COMPUTING, *optional)}
    return found | {"torch": str(torch.__version__)}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _integrations(install: bool) -> list[dict[str, Any]]:
    """Packages of ``mg.integrations.install``: whether they are installed, and what is switched off."""
    found = []
    for name in installing.KNOWN:
        available = name in sys.modules or importlib.util.find_spec(name) is not None
        record = installing.record_of(name)
        if install and available:
            installing.install(name)
        state = {"available": available, "installed": record.is_installed, "off": list(record.off)}
        found.append({"package": name, "without": record.without, **state})
    return found


def _devices() -> dict[str, str]:
    found = {"cpu": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"}
    for i, device in enumerate(map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))):
        compute, gib = f"{device.major}.{device.minor}", device.total_memory / 2**30
        found[f"cuda:{i}"] = f"{device.name}, compute capability {compute}, {gib:.0f} GiB"
    return found


def _threads() -> dict[str, Any]:
    """Numbers of threads, PyTorch's pool (also used by our loops), and the variables that set them."""
    may_use = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pool = "nothing: numba cannot be used"
    if numba_works():
        from maskgrad.kernels.cpu import threads  # imports the compiler

        pool = threads.pool()
    variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "MASKGRAD_KERNELS")
    return {
        "cores this process may use": may_use,
        "threads of PyTorch": torch.get_num_threads(),
        "threads between operations": torch.get_num_interop_threads(),
        "compiled kernels run on": pool,
        "environment": {name: os.environ[name] for name in variables if name in os.environ},
        "platform": sys.platform,
    }
