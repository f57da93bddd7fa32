"""The law of the sparse layouts: they mean what the Boolean mask means, derivatives included, or refuse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.patterns.conversion import pattern_of_places
from maskgrad.semantics.stored.registry import rule_for
from tests.effort import is_light
from tests.laws.any_type.operands import Call
from tests.laws.any_type.operator_database import Entry
from tests.laws.effort import samples_of
from tests.laws.jagged import Arrangement, check_arrangement
from tests.laws.second_order import wide

__all__ = ["Sparse", "check_stored"]

COO, CSR, CSC = torch.sparse_coo, torch.sparse_csr, torch.sparse_csc
BSR, BSC = torch.sparse_bsr, torch.sparse_bsc
#: Calls in which they do not, each with its reason.
DEVIATIONS: tuple[tuple[tuple[str, ...], Callable[[Call], bool], str], ...] = (
    (
        ("addmm", "addmv", "baddbmm"),
        lambda call: 0 in call.tensors[1].shape,
        "a sum of no products of plain factors is 0, and not unspecified",
    ),
    (
        ("addmm", "addmv"),
        lambda call: call.with_tensors(call.tensors)[1].get("beta") == 0,
        "a product of plain factors is plain, whatever it is not added to",
    ),
    (
        ("outer",),
        lambda call: call.tensors[0].dtype == torch.bool,
        "products of Booleans are refused, as torch.matmul refuses them",
    ),
)
#: What a transpose makes of a layout.
TURNED = {CSR: CSC, CSC: CSR, BSR: BSC, BSC: BSR}


class Sparse(NamedTuple):
    """How an operand is stored: the layout, the number of sparse dimensions (the first ones), blocks."""

    layout: torch.layout
    dims: int
    blocksize: tuple[int, int] | None = None

    def __call__(self, values: Tensor, mask: Tensor) -> MaskedTensor:
        """The specified entries, taken one by one."""
        shape = tuple(values.shape[: self.dims])
        known = mask.reshape(*shape, math.prod(values.shape[self.dims :]))
        known = known[..., 0] if known.shape[-1] else known.new_zeros(shape)
        pattern, order = pattern_of_places(known.nonzero().T, shape, self.layout, self.blocksize)
        return MaskedTensor(pattern.gathered(values[known][order]), pattern)


def coordinates(shape: torch.Size) -> Sparse:
    return Sparse(COO, len(shape))


def hybrid(shape: torch.Size) -> Sparse | None:
    return Sparse(COO, len(shape) - 1) if len(shape) > 1 else None


def compressed(layout: torch.layout, dense: int = 0) -> Callable[[torch.Size], Sparse | None]:
    """A matrix, a batch of them, or one with dense dimensions behind it."""

    def how(shape: torch.Size) -> Sparse | None:
        return Sparse(layout, len(shape) - dense) if len(shape) - dense in (2, 3) else None

    return how


def blocked(layout: torch.layout) -> Callable[[torch.Size], Sparse | None]:
    def how(shape: torch.Size) -> Sparse | None:
        if len(shape) not in (2, 3):
            return None
        height, width = (next((n for n in (2, 3, 5) if size % n == 0), 1) for size in shape[-2:])
        return Sparse(layout, len(shape), (height, width))

    return how


def mask_for(how: Sparse, shape: torch.Size, density: float, generator: torch.Generator) -> Tensor:
    """Whole blocks; of a batch of compressed matrices, as many in each."""
    sizes = list(shape[: how.dims])
    height, width = how.blocksize or (1, 1)
    if how.layout != COO:
        sizes[-2:] = [sizes[-2] // height, sizes[-1] // width]
    batch = [] if how.layout == COO else sizes[:-2]
    number = math.prod(sizes[len(batch) :])
    ranks = torch.rand(*batch, number, generator=generator).argsort(-1).argsort(-1)
    known = (ranks < round(density * number)).reshape(sizes)
    if how.layout != COO:
        known = known.repeat_interleave(height, -2).repeat_interleave(width, -1)
    return known.reshape((*known.shape, *(1,) * (len(shape) - how.dims))).expand(shape)


def arrangements(entry: Entry, call: Call, thinned: bool) -> Iterator[Arrangement]:
    """All operands with the same pattern, with others, and one alone, on several layouts."""
    generator = torch.Generator().manual_seed(0)
    first, data = call.data[:1], call.data
    is_scalar = not any(tensor.ndim for tensor in call.tensors)

    def arranged(name: str, how: Callable[[torch.Size], Sparse | None], only: list[int] = data, own: bool = False,
                 density: float = 0.6, special: bool = False, beside: Any = None) -> Arrangement | None:  # fmt: skip
        known: dict[torch.Size, Tensor] = {}
        places: list[Any] = []
        masks: list[Tensor | None] = []
        for i, tensor in enumerate(call.tensors):
            place = how(tensor.shape) if i in only and (tensor.ndim or is_scalar) else None
            mask = None if place is None else mask_for(place, tensor.shape, density, generator)
            if mask is not None and not own:
                mask = known.setdefault(tensor.shape, mask)
            elif mask is None and beside and i in data and tensor.ndim:
                place, mask = beside, torch.rand(tensor.shape, generator=generator) < density
            places.append(place)
            masks.append(mask)
        layouts = {place.layout for place in places if isinstance(place, Sparse)}
        if not layouts:
            return None
        alike = len({tensor.shape for tensor in call.tensors if tensor.ndim}) == 1
        if not (entry.operation.family == "elementwise" and alike and density and not own and not beside):
            layouts |= {torch.strided, COO, *(TURNED.get(layout, layout) for layout in layouts)}
        return Arrangement(name, tuple(places), tuple(masks), tuple(layouts), special)

    found = [
        arranged("COO", coordinates),
        arranged("COO of other patterns", coordinates, own=True),
        arranged("CSR", compressed(CSR)),
    ]
    if not thinned:
        found += [
            arranged("first alone", coordinates, first),
            arranged("first beside masks", coordinates, first, beside=mg.masked),
            arranged("all but the first", coordinates, data[1:]),
            arranged("ties, NaN and infinities", coordinates, special=True),
            arranged("hybrid", hybrid),
            arranged("no entries", coordinates, density=0.0),
            arranged("all entries", coordinates, density=1.0),
            arranged("CSR of other patterns", compressed(CSR), own=True),
            arranged("CSR, first alone", compressed(CSR), first),
            arranged("hybrid CSR", compressed(CSR, 1)),
            arranged("CSC", compressed(CSC)),
            arranged("BSR", blocked(BSR)),
            arranged("BSC", blocked(BSC)),
        ]
    return (arrangement for arrangement in found if arrangement is not None)


def deviates(entry: Entry, call: Call) -> bool:
    return any(entry.name in names and concerns(call) for names, concerns, _ in DEVIATIONS)


def check_stored(entry: Entry) -> None:
    """Each sample, stored in several ways; what has no rule is refused."""
    thinned = is_light()
    samples = samples_of(entry, wide(entry) if entry.of is None else None)
    calls = [
        call for sample in samples if (call := Call.of(entry, sample)).data and not deviates(entry, call)
    ]
    for i, call in enumerate(calls[:1] if thinned or entry.of else calls):
        for arrangement in arrangements(entry, call, thinned):
            what = f"{entry.id}, sample {i}, {arrangement.name}"
            served = check_arrangement(entry, call, arrangement, what)
            assert not served or rule_for(entry.operation), f"{what}: it is served, without a rule"
