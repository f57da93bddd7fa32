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

from maskgrad.distributed.process_group import ProcessGroup
from maskgrad.gradients.gradient import AnyGradient, Gradient, read
from maskgrad.gradients.padded_rows import PaddedRows
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.masked_tensor.tensor import stored_of
from maskgrad.patterns.conversion import BLOCKED, LAYOUTS
from maskgrad.sparse import prod

__all__ = ["DTYPES", "LAYOUTS", "Facts", "LocalGradient", "local_gradient", "nothing"]

_KINDS = (Tensor, MaskedTensor, PaddedRows)

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
class LocalGradient:
    """A gradient that has been read; see the table above for what is None when."""

    facts: Facts
    values: Tensor | None = None
    mask: Tensor | None = None
    rows: Tensor | None = None

    def with_leading(self, leading: int, shape: torch.Size) -> LocalGradient:
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


def nothing() -> LocalGradient:
    """What a rank without a gradient brings."""
    return LocalGradient(ABSENT)


def local_gradient(gradient: AnyGradient | None, shape: torch.Size, name: str) -> LocalGradient:
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
    found = read(gradient, name)
    found = found.with_values(found.values.to(ProcessGroup.summable(gradient.dtype))).merged(ascending=True)
    return LocalGradient(_facts(gradient, found), found.values, found.mask, found.rows)


def _facts(gradient: AnyGradient, found: Gradient) -> Facts:
    """What the others have to know of ``gradient``, from which ``found`` was read."""
    rows, dtype = 0 if found.rows is None else len(found.rows), DTYPES.index(gradient.dtype)
    facts = ABSENT._replace(present=1, dtype=dtype, leading=found.leading, rows=rows)
    if isinstance(gradient, PaddedRows):
        return facts._replace(masked=2, layout=LAYOUTS.index(torch.sparse_coo), slots=gradient.capacity)
    # what is exchanged are places, in which a jagged gradient differs from a list of coordinates by nothing
    layout = torch.sparse_coo if gradient.layout == torch.jagged else gradient.layout
    facts = facts._replace(masked=int(isinstance(gradient, MaskedTensor)), layout=LAYOUTS.index(layout))
    if gradient.layout not in BLOCKED:
        return facts
    listed = stored_of(gradient) if isinstance(gradient, MaskedTensor) else None
    values = gradient.values() if listed is None else listed.values
    height, width = values.shape[found.leading - 1 : found.leading + 1]
    return facts._replace(height=height, width=width)
