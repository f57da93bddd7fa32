"""The right programs in ``programs/``: whole ones of a hundred lines and more, in which nothing may be found."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import torch

__all__ = ["PROGRAMS", "load"]

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


def load(path: Path) -> ModuleType:
    """A program with its own parameters, the same ones every time."""
    torch.default_generator.manual_seed(0)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program
