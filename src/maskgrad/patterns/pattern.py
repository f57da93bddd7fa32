"""What every pattern can say about itself, however it is stored."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Pattern", "PatternFacts"]


class PatternFacts(NamedTuple):
    """A pattern without its tensors: plain data that can be compared, hashed and written to a file."""

    layout: str
    #: of a jagged layout, where batch and ragged dimension stand: its sizes are those of a tensor
    sizes: tuple[int, ...] = ()
    blocksize: tuple[int, int] | None = None


class Pattern(abc.ABC):
    """Which entries of a tensor are specified; constant, and without a place in the autograd graph."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def layout(self) -> torch.layout:
        """The storage layout of the values that this pattern describes."""

    @property
    @abc.abstractmethod
    def mask(self) -> Tensor:
        """One Boolean per entry of the whole shape; for a sparse layout this allocates the whole shape."""

    @abc.abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that store the pattern: with the values, the leaves of the pytree."""

    @abc.abstractmethod
    def facts(self) -> PatternFacts:
        """What is known without looking at numbers."""

    @abc.abstractmethod
    def rebuilt(self, tensors: tuple[Any, ...]) -> Pattern:
        """The same kind of pattern with the same facts around other tensors (moved, detached, traced)."""
