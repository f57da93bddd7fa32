"""What is sent back to stored values: a gradient of the same pattern, of another one, or of the whole shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.semantics.entries import Entries
from maskgrad.semantics.jagged.rows import at_rows
from maskgrad.semantics.sparse.elementwise import lookup, same_pattern
from maskgrad.semantics.sparse.entries import SparseEntries, densified, shape_of

__all__ = ["cotangent"]


def cotangent(output: SparseEntries, gradient: Any) -> Tensor:
    """A gradient in the storage of ``output``; what it does not specify is 0, and what ``output`` has not is ignored.

    Args:
        output: stored values.
        gradient: stored (any layout), masked or dense, of the shape of ``output``.

    Raises:
        RuntimeError: the shapes differ.
    """
    if shape_of(gradient) != output.shape:
        raise RuntimeError(
            f"the gradient must have shape {tuple(output.shape)}, found {tuple(shape_of(gradient))}"
        )
    if isinstance(gradient, SparseEntries) and same_pattern([output, gradient]):
        return gradient.values
    jagged = isinstance(output.pattern, JaggedPattern)  # whose dimensions stand anywhere in the shape
    if isinstance(gradient, SparseEntries) and (jagged or isinstance(gradient.pattern, JaggedPattern)):
        gradient = densified(gradient)
    if isinstance(output.pattern, JaggedPattern):
        plain = torch.where(gradient.mask, gradient.values, 0) if isinstance(gradient, Entries) else gradient
        return at_rows(plain, output.pattern)
    places = output.pattern.coordinates()
    if isinstance(gradient, SparseEntries) and len(gradient.sizes) == len(output.sizes):
        entries, present = lookup(gradient, places)
        present = present.reshape(-1, *(1,) * (entries.ndim - 1))
        entries = torch.where(present, entries, 0)
    else:
        dense = gradient
        if isinstance(gradient, SparseEntries):
            raise RuntimeError("the gradient must have the same dense dimensions as the output")
        if isinstance(gradient, Entries):
            dense = torch.where(gradient.mask, gradient.values, 0)
        entries = dense[tuple(places)]
    return output.pattern.gathered(entries)
