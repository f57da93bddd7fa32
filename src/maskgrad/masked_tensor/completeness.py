"""Keep only complete slices along a dimension: rows of features, windows, groups."""

from __future__ import annotations

import math

import torch

from maskgrad.kernels.smallest import smallest
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries, stored_of
from maskgrad.semantics.dimensions import as_dims
from maskgrad.semantics.jagged.rows import is_jagged
from maskgrad.semantics.stored.entries import exploded, from_places
from maskgrad.semantics.stored.groups import group

__all__ = ["METHODS"]


def complete(self: MaskedTensor, dim: int | tuple[int, ...] = -1) -> MaskedTensor:
    r"""Keep the entries of slices that are specified in all of ``dim``; the other slices become unspecified.

    .. math:: m'_{i} = \prod_{j \in \text{dim}} m_{ij}

    A linear layer on ``torch.cat([h_i, h_j], -1)`` sums over the specified features: with ``h_j`` missing, the result
    is a partial sum, but specified. ``torch.cat([h_i, h_j], -1).complete(-1)`` excludes such pairs.

    Args:
        self: a MaskedTensor of any layout.
        dim: one or several dimensions. A slice along them of size 0 is complete.

    Returns:
        MaskedTensor of the same shape and values. Jagged stays jagged if all of ``dim`` are features, which are
        specified together, and otherwise has a Boolean mask; a sparse layout becomes COO.

    Pattern: ``x.mask & x.mask.all(dim, keepdim=True)``. Gradient: passes where the result is specified.

    Raises:
        IndexError: ``dim`` is out of range.

    Dense equivalent: ``x.masked_fill(x.isnan().any(dim, keepdim=True), nan)`` where NaN marks what is missing.

    Example:
        >>> import torch, maskgrad as mg
        >>> x = mg.from_nan(torch.tensor([[1., 2.], [3., float("nan")]]))
        >>> torch.nn.functional.linear(x, torch.ones(1, 2)).tolist()
        [[3.0], [3.0]]
        >>> torch.nn.functional.linear(x.complete(-1), torch.ones(1, 2)).tolist()
        [[3.0], [None]]
    """
    dims = as_dims(dim, len(self.shape))
    stored = stored_of(self)
    if is_jagged(stored) and not set(dims) & set(stored.pattern.at):
        return MaskedTensor(self._values.clone(), stored.pattern)
    if stored is None or is_jagged(stored):
        values, mask = self._dense()
        few = smallest(mask)
        mask = few.all(dims, keepdim=True) if few.ndim else few
        return of_entries(torch.where(mask, values, torch.zeros_like(values)), mask.expand(values.shape))
    coordinates, entries, sizes = exploded(stored)
    if all(d < len(stored.sizes) for d in dims):  # dense dimensions are kept
        coordinates, entries, sizes = stored.pattern.coordinates(), stored.entries, stored.sizes
    groups = group(coordinates, sizes, dims)
    kept = (groups.count() == math.prod([sizes[d] for d in dims]))[groups.index]
    found = from_places(coordinates[:, kept], entries[kept], sizes)
    return MaskedTensor(found.values, found.pattern)


METHODS = (complete,)
