"""What one rank brings to an exchange: a gradient of any kind in one of three forms, and eight numbers about it.

=====================  =======================================================  ===========================
kind of gradient       form                                                     entries that are specified
=====================  =======================================================  ===========================
None                   nothing                                                  none
strided tensor         ``values`` of the whole shape                            all
Boolean MaskedTensor   ``values`` of the whole shape, 0 where unspecified       those under ``mask``
anything sparse        ``rows`` (n,), ascending, each once, ``values`` (n, *)   those of the rows listed
=====================  =======================================================  ===========================

Rows are counted in the product of the first ``leading`` sizes. Values are in the dtype in which they are added up:
contributions of halves to one entry are merged in float32, as they are across ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from maskgrad import kernels
from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.gradients.attached import AnyGradient
from maskgrad.gradients.padded_rows import PaddedRows
from maskgrad.masked_tensor import MaskedTensor, from_sparse
from maskgrad.masked_tensor.tensor import stored_of
from maskgrad.sparse import increasing, positions, prod, stored

__all__ = ["DTYPES", "LAYOUTS", "Contribution", "Facts", "contribution_of", "nothing"]

_KINDS = (Tensor, MaskedTensor, PaddedRows)

LAYOUTS = (
    torch.strided,
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.complex32,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


class Facts(NamedTuple):
    """What the other ranks have to know of a contribution before they can receive it: plain integers."""

    present: int
    masked: int
    """0 for a tensor, 1 for a MaskedTensor, 2 for PaddedRows."""
    layout: int
    """Place in :data:`LAYOUTS`."""
    dtype: int
    """Place in :data:`DTYPES`, of the gradient as it was."""
    leading: int
    rows: int
    """How many are listed."""
    height: int
    """Of a block; 0 without blocks."""
    width: int
    slots: int
    """Of PaddedRows."""


ABSENT = Facts(*[0] * len(Facts._fields))


@dataclass(frozen=True, slots=True)
class Contribution:
    """A gradient that has been read; see the table above for what is None when."""

    facts: Facts
    values: Tensor | None = None
    mask: Tensor | None = None
    rows: Tensor | None = None

    def with_leading(self, leading: int, shape: torch.Size) -> Contribution:
        """The same, listing rows of the first ``leading`` dimensions, which are not fewer."""
        before = self.facts.leading
        if self.rows is None or before == leading:
            return self
        assert self.values is not None
        parts = prod(shape[before:leading])
        finer = self.rows.unsqueeze(1) * parts + torch.arange(parts, device=self.rows.device)
        return replace(
            self,
            facts=self.facts._replace(leading=leading),
            rows=finer.view(-1),
            values=self.values.reshape(-1, *shape[leading:]),
        )

    def whole_values(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Values of the whole shape, 0 where nothing is specified, in a new tensor."""
        if self.values is None:
            return torch.zeros(shape, dtype=dtype, device=device)
        if self.rows is None:
            return self.values.to(dtype)
        whole = torch.zeros(
            (prod(shape[: self.facts.leading]), *self.values.shape[1:]), dtype=dtype, device=device
        )
        return whole.index_copy_(0, self.rows, self.values.to(dtype)).view(shape)

    def specified(self, shape: torch.Size, device: torch.device) -> Tensor:
        """int32 of the whole shape: 1 where an entry is specified."""
        if self.rows is not None:
            return self.listed(prod(shape[: self.facts.leading])).view(
                *shape[: self.facts.leading], *(1,) * (len(shape) - self.facts.leading)
            ).expand(shape)  # fmt: skip
        if self.mask is not None:
            return self.mask.to(torch.int32)
        return torch.full(shape, self.facts.present, dtype=torch.int32, device=device)

    def listed(self, number: int) -> Tensor:
        """int32 (number,): 1 for the rows that are listed."""
        assert self.rows is not None
        return torch.zeros(number, dtype=torch.int32, device=self.rows.device).index_fill_(0, self.rows, 1)


def nothing() -> Contribution:
    """What a rank without a gradient brings."""
    return Contribution(ABSENT)


def contribution_of(gradient: AnyGradient | None, shape: torch.Size, name: str) -> Contribution:
    """Read a gradient, after a look at everything that can be wrong with it.

    Args:
        gradient: of any kind; None: this rank has none.
        shape: what it must have.
        name: what to call it in an error.

    Raises:
        TypeError: no tensor, or one of an unknown layout or dtype.
        ValueError: another shape, or indices that contradict each other.
        IndexError: an index outside the shape.
    """
    if gradient is None:
        return nothing()
    if not isinstance(gradient, _KINDS):
        raise TypeError(f"{name} must be a tensor or a MaskedTensor, found {type(gradient).__name__}")
    if gradient.shape != shape:
        raise ValueError(f"{name} must have shape {tuple(shape)}, found {tuple(gradient.shape)}")
    if gradient.dtype not in DTYPES:
        raise TypeError(f"{name} has dtype {gradient.dtype}, which cannot be added up; convert it first")
    gradient = gradient.detach()
    summed = ProcessGroup.summable(gradient.dtype)
    if isinstance(gradient, PaddedRows):
        used = gradient.checked(name).used
        place, dtype = LAYOUTS.index(torch.sparse_coo), DTYPES.index(gradient.dtype)
        facts = ABSENT._replace(present=1, masked=2, layout=place, dtype=dtype, slots=gradient.capacity)
        return _of_rows(facts, gradient.rows[used][None], gradient.values[used].to(summed), shape, name)
    if isinstance(gradient, Tensor):
        if gradient.layout not in LAYOUTS:
            raise TypeError(
                f"{name} has layout {gradient.layout}; expected one of {', '.join(map(str, LAYOUTS))}"
            )
        if gradient.layout is torch.strided:
            return Contribution(_facts(gradient), gradient.to(summed))
        if gradient.layout is torch.sparse_coo:
            indices, values = stored(gradient)
            return _of_rows(_facts(gradient), indices, values.to(summed), shape, name)
        return _of_stored(_facts(gradient), from_sparse(gradient), summed, shape, name)
    if stored_of(gradient) is not None:
        return _of_stored(_facts(gradient, masked=1), gradient, summed, shape, name)
    return Contribution(
        _facts(gradient, masked=1), torch.where(gradient.mask, gradient._values.to(summed), 0), gradient.mask
    )


def _facts(gradient: Tensor | MaskedTensor, masked: int = 0) -> Facts:
    place, dtype = LAYOUTS.index(gradient.layout), DTYPES.index(gradient.dtype)
    return ABSENT._replace(present=1, masked=masked, layout=place, dtype=dtype)


def _of_stored(
    facts: Facts, gradient: MaskedTensor, summed: torch.dtype, shape: torch.Size, name: str
) -> Contribution:
    listed = stored_of(gradient)
    assert listed is not None
    height, width = listed.pattern.facts().blocksize or (0, 0)
    coordinates, entries = listed.pattern.coordinates(), listed.entries.to(summed)
    return _of_rows(facts._replace(height=height, width=width), coordinates, entries, shape, name)


def _of_rows(facts: Facts, indices: Tensor, values: Tensor, shape: torch.Size, name: str) -> Contribution:
    """Merge entries (n, *dense) at ``indices`` (s, n)."""
    leading = len(indices)
    rows = positions(indices, shape[:leading], name)
    if not increasing(rows):
        rows, values = kernels.merge_rows(rows, values, prod(shape[:leading]), "sum")
    return Contribution(facts._replace(leading=leading, rows=len(rows)), values, rows=rows)
