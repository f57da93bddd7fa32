"""Everything that affects results and speed: versions, kernels, patches of PyTorch, devices, threads."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from typing import Any

import torch

import maskgrad
from maskgrad.integrations import installing
from maskgrad.integrations.installing import KNOWN, record_of
from maskgrad.kernels import kernels_in_use
from maskgrad.kernels.selection import numba_works
from maskgrad.masked_tensor.torch_patches.table import PATCHES
from maskgrad.versions import OPTIONAL

__all__ = ["environment"]

#: Packages that affect results and speed, besides the optional ones.
_COMPUTING = ("torch", "numpy", "numba", "llvmlite", "triton")


def environment(install: bool = False) -> dict[str, Any]:
    """Return all of it as plain data; imports Dynamo and the compiler of the kernels.

    With ``install``, other packages are imported and adapted first.
    """
    importlib.import_module("torch._dynamo")  # this applies patches that wait for it
    patch_facts = ("target", "state", "is_off", "reason", "without", "versions", "test")
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return {
        "versions": _versions(),
        "kernels": {device: kernels_in_use(device) for device in devices},
        "patches": [{fact: getattr(patch, fact) for fact in patch_facts} for patch in PATCHES],
        "integrations": _integrations(install),
        "devices": _devices(),
        "threads": _threads(),
    }


def _versions() -> dict[str, str | None]:
    """By distribution; None if not installed. PyTorch itself gives more details of its build."""
    found: dict[str, str | None] = {"maskgrad": maskgrad.__version__, "python": platform.python_version()}
    optional = [package.distribution or name for name, package in OPTIONAL.items()]
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
    for name in KNOWN:
        available = name in sys.modules or importlib.util.find_spec(name) is not None
        record = record_of(name)
        if install and available:
            installing.install(name)
        facts = {"available": available, "installed": record.is_installed, "off": list(record.off)}
        found.append({"package": name, "without": record.without, **facts})
    return found


def _devices() -> dict[str, str]:
    found = {"cpu": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"}
    for i in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(i)
        memory = f"{facts.total_memory / 2**30:.0f} GiB"
        found[f"cuda:{i}"] = f"{facts.name}, compute capability {facts.major}.{facts.minor}, {memory}"
    return found


def _threads() -> dict[str, Any]:
    """Numbers of threads, PyTorch's pool (also used by our loops), and the variables that set them."""
    may_use = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pool = "nothing: numba cannot be used"
    if numba_works():
        from maskgrad.kernels.cpu import threads  # imports the compiler

        pool = threads.pool()
    return {
        "cores of the machine": os.cpu_count(),
        "cores this process may use": may_use,
        "threads of PyTorch": torch.get_num_threads(),
        "threads between operations": torch.get_num_interop_threads(),
        "compiled kernels run on": pool,
        "environment": {
            name: os.environ[name]
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "MASKGRAD_KERNELS")
            if name in os.environ
        },
        "platform": sys.platform,
    }
