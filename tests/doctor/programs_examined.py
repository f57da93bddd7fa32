"""Programs in files: the right ones in ``programs/``, of a hundred lines and more, and small ones that tests write."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path
from types import ModuleType

import torch

__all__ = ["PROGRAMS", "load", "written"]

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import maskgrad as mg

torch.manual_seed(0)
net = nn.Linear(4, 4)
{layers}


def step(batch):
{body}
"""


def load(path: Path) -> ModuleType:
    """A program with its own parameters, the same ones every time."""
    torch.default_generator.manual_seed(0)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def written(path: Path, layers: str, body: str) -> ModuleType:
    """A program of these layers and of the body of its step, written and loaded."""
    path.write_text(HEAD.format(layers=layers, body=textwrap.indent(body, "    ")), encoding="utf-8")
    return load(path)
