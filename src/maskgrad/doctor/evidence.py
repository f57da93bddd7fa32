"""How a mask or lengths may lie on data, and whether the data agree: what is padding is alike, and at an end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "EXCLUDED",
    "Laid",
    "Sides",
    "agreement",
    "ends_in_runs",
    "is_one_piece",
    "laid_lengths",
    "laid_mask",
    "scattered",
    "sides_of",
]

#: additive masks hold nothing or at most this
EXCLUDED = -1e4
#: how many padded ids have to be alike where real ones may have the same value, and elsewhere
_MANY, _FEW = 4, 2


@dataclass(frozen=True)
class Sides:
    """A tensor with two values: a mask, of whatever it may be."""

    #: Boolean, without axes of size 1 after the first
    core: Tensor
    #: what the tensor holds where the core is False, and where it is True
    values: tuple[float, float]


@dataclass(frozen=True)
class Laid:
    """A mask laid on data.

    Attributes:
        real: Boolean, of the leading dimensions of the data, or with sizes of 1; True = real.
        samples: axis of the data.
        positions: axes of the data.
        side: which value of a mask's core is real; None for lengths.
        turned: whether the mask itself has its samples along the second axis.
    """

    real: Tensor
    samples: int
    positions: tuple[int, ...]
    side: bool | None = None
    turned: int = 0

    def in_order(self) -> Tensor:
        """The mask with its samples first, then positions, and no axis of size 1 between them."""
        axes = (self.samples, *self.positions)
        rest = [axis for axis in range(self.real.ndim) if axis not in axes]
        return (
            self.real.permute(*axes, *rest).flatten(len(axes)).any(-1) if rest else self.real.permute(*axes)
        )


def sides_of(tensor: Tensor) -> Sides | None:
    """The mask that a tensor may be: Boolean, zeros and ones, or zeros and -inf (or at most -1e4)."""
    if tensor.layout is not torch.strided or not tensor.numel() or tensor.ndim < 2 or tensor.is_complex():
        return None
    values = (0.0, 1.0)
    if tensor.dtype == torch.bool:
        core = tensor
    elif bool(((tensor == 0) | (tensor == 1)).all()):
        core = tensor != 0
    elif tensor.is_floating_point() and bool(((tensor == 0) | (tensor <= EXCLUDED)).all()):
        core, values = tensor == 0, (float(tensor.min()), 0.0)
    else:
        return None
    sizes = [size for axis, size in enumerate(tensor.shape) if size > 1 or axis == 0]
    return Sides(core.reshape(sizes), values) if len(sizes) > 1 else None


def laid_mask(core: Tensor, data: Tensor, *, time_first: bool) -> Iterator[Laid]:
    """All layouts in which a mask lies on data, for both sides that may be real."""
    for axes, samples, positions in _layouts(tuple(core.shape), tuple(data.shape), time_first=time_first):
        for side in (True, False):
            yield Laid(_spread(core == side, axes), samples, positions, side, axes.index(samples))
    pairs = core.ndim in (3, 4) and core.shape[-1] == core.shape[-2]
    if not pairs or data.shape[-2:] == core.shape[-2:]:
        return
    for side in (True, False):
        seen = (core == side).flatten(1, -2).any(1)  # keys that some query may see
        for axes, samples, positions in _layouts(tuple(seen.shape), tuple(data.shape), time_first=time_first):
            if not axes.index(samples):
                yield Laid(_spread(seen, axes), samples, positions, side)


#: axes of data on which those of a mask may lie, which of them are samples, and which positions
_LAYOUTS: tuple[tuple[tuple[int, ...], int, tuple[int, ...]], ...] = (
    ((0, 1), 0, (1,)),
    ((0, 2), 0, (2,)),
    ((0, 1), 1, (0,)),
    ((1, 0), 1, (0,)),
    ((1, 0), 0, (1,)),
    ((2, 0), 0, (2,)),
    ((0, 1, 2), 0, (1, 2)),
    ((0, 2, 3), 0, (2, 3)),
)


def _layouts(
    size: tuple[int, ...], shape: tuple[int, ...], *, time_first: bool
) -> Iterator[tuple[tuple[int, ...], int, tuple[int, ...]]]:
    """The layouts that fit; axes after the second may only be the last ones."""
    for axes, samples, positions in _LAYOUTS:
        fits = len(shape) > max(axes) if 1 in axes else len(shape) == max(axes) + 1
        if fits and tuple(shape[axis] for axis in axes) == size and (time_first or samples == 0):
            yield axes, samples, positions


def _spread(core: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The mask with its axes where the data have them, and sizes of 1 between."""
    order = sorted(range(core.ndim), key=lambda axis: axes[axis])
    size = dict(zip(axes, core.shape, strict=True))
    return core.permute(order).reshape([size.get(axis, 1) for axis in range(max(axes) + 1)])


def laid_lengths(lengths: Tensor, data: Tensor, *, time_first: bool) -> Iterator[Laid]:
    """All layouts in which lengths lie on data: along each axis, first that of their largest, at both ends."""
    if data.ndim < 2:
        return
    layouts = [(0, axis) for axis in range(1, data.ndim)] + ([(1, 0)] if time_first else [])
    layouts = [
        layout for layout in layouts if data.shape[layout[0]] == len(lengths) and data.shape[layout[1]] > 1
    ]
    if lengths.is_floating_point():  # a share of the longest
        at_most = dict.fromkeys(layouts, lengths)
        counts = {layout: (part * data.shape[layout[1]]).round().long() for layout, part in at_most.items()}
    else:
        longest = int(lengths.max())
        layouts = sorted(
            (layout for layout in layouts if longest <= data.shape[layout[1]]),
            key=lambda layout: data.shape[layout[1]] != longest,
        )
        counts = dict.fromkeys(layouts, lengths)
    for samples, positions in layouts:
        size = data.shape[positions]
        steps, held = (
            torch.arange(size, device=data.device),
            counts[samples, positions].to(data.device)[:, None],
        )
        for real in (steps < held, steps >= size - held):
            yield Laid(_spread(real, (samples, positions)), samples, (positions,))


def agreement(data: Tensor, laid: Laid) -> int:
    """How many padded positions hold the same in data that is not alike elsewhere; 0 if the data do not agree."""
    real = laid.in_order()
    if real.ndim not in (2, 3) or bool(real.all()) or not bool(real.any()) or not is_one_piece(real):
        return 0
    axes = (laid.samples, *laid.positions)
    rest = [axis for axis in range(data.ndim) if axis not in axes]
    return _alike(
        data.permute(*axes, *rest).flatten(len(axes)) if rest else data.permute(*axes)[..., None], real
    )


def scattered(data: Tensor, real: Tensor) -> int:
    """The same for single numbers of which each has its own mask."""
    return 0 if bool(real.all()) or not bool(real.any()) else _alike(data[..., None], real)


def _alike(data: Tensor, real: Tensor) -> int:
    padded, kept = data[~real], data[real]
    count, value = len(padded), padded[:1]
    if count < _FEW or not bool((padded == value).all()) or bool((kept == value).all()):
        return 0
    if not data.is_floating_point() and count < _MANY and bool((kept == value).all(-1).any()):
        return 0
    return count


def is_one_piece(real: Tensor) -> bool:
    """Whether the real positions of each sample are neighbours; those of an image have a corner and are a rectangle."""
    if real.ndim == 2:
        before = torch.cat([torch.zeros_like(real[:, :1]), real[:, :-1]], 1)
        return bool(((real & ~before).sum(1) <= 1).all())
    rows, columns = real.any(2), real.any(1)
    rectangle = torch.equal(real, rows[:, :, None] & columns[:, None])
    ends = all(bool((side[:, 0] | side[:, -1] | ~side.any(1)).all()) for side in (rows, columns))
    return rectangle and ends and is_one_piece(rows) and is_one_piece(columns)


def ends_in_runs(data: Tensor) -> Tensor | None:
    """Where data are real, if rows begin or end in runs of one id (or zero vector) that is nowhere else; else None.

    By chance 0.2 % of batches without padding look so: at least two rows, one run of two, four positions in all.
    """
    if data.ndim < 2 or min(data.shape[:2]) < 2:
        return None
    vectors = data.flatten(2) if data.ndim > 2 else data[..., None]
    for edge in (vectors[:, -1], vectors[:, 0]):
        for value in _common(edge, floats=data.is_floating_point()):
            padded = (vectors == value).all(-1)
            per_row = padded.sum(1)
            enough = int((per_row > 0).sum()) >= 2 and int(per_row.max()) >= 2 and int(per_row.sum()) >= _MANY
            if enough and not bool(padded.all()) and is_one_piece(~padded):
                return ~padded
    return None


def _common(edge: Tensor, *, floats: bool) -> list[Tensor]:
    """What several rows have at an end; of numbers only zeros."""
    if floats:
        return [torch.zeros_like(edge[0])]
    values, counts = edge.unique(dim=0, return_counts=True)
    return list(values[counts > 1])
