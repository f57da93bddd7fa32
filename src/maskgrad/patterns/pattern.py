"""Interface of all patterns."""

from __future__ import annotations

import abc
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Pattern", "PatternFacts"]


class PatternFacts(NamedTuple):
    """A pattern without its tensors: plain data that can be compared, hashed and written to a file."""

    layout: str
    #: positions of batch and ragged dimension in a jagged layout, whose sizes are those of a tensor
    sizes: tuple[int, ...] = ()
    blocksize: tuple[int, int] | None = None


class Pattern(abc.ABC):
    """The specified entries of a tensor; constant, and not part of the autograd graph."""

    __slots__ = ()

    #: the storage layout of the values
    layout: torch.layout

    @property
    @abc.abstractmethod
    def mask(self) -> Tensor:
        """One Boolean per entry of the full shape, which a sparse layout must allocate."""

    @abc.abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that store the pattern: with the values, the leaves of the pytree."""

    @abc.abstractmethod
    def facts(self) -> PatternFacts:
        """The properties known without reading tensors."""
