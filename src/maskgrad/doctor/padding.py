"""Which entries of a tensor are padding: by the values and names of masks and lengths, or as a caller says."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.doctor.operations import expanded
from maskgrad.errors import ExaminationError
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.patterns.mask_arguments import boolean_mask

__all__ = [
    "IGNORED", "SAYS_PADDING", "Laid", "Padding", "Sides", "alike", "as_mask", "by_diagonal", "ends_in_runs",
    "is_causal", "is_one_piece", "layouts", "lengths_mask", "marked", "padded_ids", "with_given",
]  # fmt: skip

#: the label that PyTorch's losses ignore
IGNORED = -100
#: how a caller names padding
SAYS_PADDING = "padding={key: mask} (True = real) or padding={key: key_of_the_mask}"


@dataclass(frozen=True)
class Padding:
    """Which entries of one tensor of the batch are real, and how that is known."""

    key: Key
    #: Boolean, of the leading dimensions of the tensor, or of its shape with sizes of 1
    mask: Tensor
    source: str
    #: the masks of the batch with this padding, and their value there; None for lengths
    mask_values: Mapping[Key, float | None] = field(default_factory=dict)
    #: the axis of the samples, 0 or 1
    samples: int = 0

    @property
    def by_sample(self) -> Tensor:
        """The mask with the samples along its first axis."""
        return self.mask.transpose(0, 1) if self.samples else self.mask

    def turned(self, counts: Collection[int]) -> Padding:
        """With a sample in each column, if padded ids look so; ``counts``: how many labels or lengths there are."""
        real, of_ids = self.mask, self.source.startswith("padding_idx") and self.mask.ndim == 2
        if not of_ids or real.shape[0] == real.shape[1] or not is_one_piece(real.t()):
            return self
        first = not is_one_piece(real) or (real.shape[1] in counts and real.shape[0] not in counts)
        return replace(self, samples=int(first))

    def entries(self, tensor: Tensor) -> Tensor:
        """The mask in the shape of the tensor."""
        return expanded(self.mask, tensor.shape)


def lengths_mask(lengths: Tensor, columns: int, device: torch.device) -> Tensor:
    """The mask of sequences of these lengths."""
    return torch.arange(columns, device=device) < lengths.to(device)[:, None]


def with_given(recognised: Sequence[Padding], batch: Any, given: Mapping[Key, Any] | None) -> list[Padding]:
    """What was recognised, but for the keys that the caller names; ExaminationError if a key or mask does not fit."""
    inside = fields(batch)
    if given is not None and not isinstance(given, Mapping):
        raise ExaminationError(
            f"padding: expected a mapping from keys of the batch to masks or keys of masks, "
            f"found {type(given).__name__}; write padding={{{next(iter(inside), 'x')!r}: mask}}"
        )
    named = [_given(inside, key, mask) for key, mask in (given or {}).items()]
    return [*named, *(padding for padding in recognised if padding.key not in (given or {}))]


def _given(inside: dict[Key, Tensor | MaskedTensor], key: Key, given: Any) -> Padding:
    known = f"the batch has {', '.join(map(repr, inside)) or 'no tensors'}"
    if key not in inside:
        raise ExaminationError(f"padding: {key!r} is not a key of the batch; {known}")
    tensor = tensor_of(inside[key])
    mask_key: Key | None = None
    if type(given) is int and given not in inside:
        return Padding(key, tensor != given, f"the id {given}")
    inverted = isinstance(given, str) and given.startswith("~")
    if not isinstance(given, Tensor):
        mask_key = given[1:] if inverted else given
        if isinstance(given, MaskedTensor) or mask_key not in inside:
            raise ExaminationError(
                f"padding[{key!r}]: expected a Boolean tensor, the key of one, or the id of padding, found "
                f"{mask_key!r}; {known}"
            )
        given = tensor_of(inside[mask_key])
    by_sample = given.ndim == 1 < tensor.ndim and len(given) == len(tensor) > 0 and not inverted
    if by_sample and given.dtype in (torch.int64, torch.int32) and int(given.max()) > 1:
        mask = lengths_mask(given, tensor.shape[1], tensor.device)
        return Padding(key, mask, "given", {} if mask_key is None else {mask_key: None})
    value = float(inverted)
    if given.is_floating_point():  # a batch may hold such masks under a key
        additive = bool(((given == 0) | (given <= EXCLUDED)).all())
        if additive or bool(((given == 0) | (given == 1)).all()):
            given, value = (given != 0) ^ additive, float(given.min()) if additive else value
    try:
        mask = boolean_mask(given, f"padding[{key!r}]", "real") ^ inverted
    except (TypeError, ValueError) as error:
        raise ExaminationError(str(error)) from None
    # without sizes of 1, as attention takes it, or before the channels
    plain = mask.reshape([size for axis, size in enumerate(mask.shape) if size > 1 or axis == 0])
    channels = [plain[:, None]] if 1 < plain.ndim < tensor.ndim else []
    sizes = [(form, list(zip(form.shape, tensor.shape, strict=False))) for form in (mask, plain, *channels)]
    fits = (form for form, pairs in sizes if form.ndim <= tensor.ndim and all(n in (1, m) for n, m in pairs))
    fitted = next(fits, None)
    if fitted is None:
        raise ExaminationError(
            f"padding[{key!r}]: a mask of shape {tuple(mask.shape)} does not fit the tensor of shape "
            f"{tuple(tensor.shape)}; give a mask of its leading dimensions, such as {tuple(tensor.shape[: mask.ndim])}"
        )
    both = [Laid(side, 0, (1,)) for side in (fitted, ~fitted)] if fitted.ndim == 2 <= tensor.ndim else []
    if both and alike(tensor, both[1]) and not alike(tensor, both[0]):
        constant = tensor[fitted].flatten()[0].item()
        instead = f"'~{mask_key}'" if isinstance(mask_key, str) else "~mask"
        raise ExaminationError(
            f"padding[{key!r}]: the mask is True where the tensor is constantly {constant}, at one end of the rows: "
            f"True means real, not padding; invert it, padding={{{key!r}: {instead}}}"
        )
    return Padding(key, fitted, "given", {} if mask_key is None else {mask_key: value})


#: additive masks hold nothing or at most this
EXCLUDED = -1e4
#: how many padded ids have to be alike where real ones may have the same value, and elsewhere
_MANY, _FEW = 4, 2


class Sides(NamedTuple):
    """A mask, of whatever it may be: without axes of size 1 after the first, and what stands for False and True."""

    core: Tensor
    values: tuple[float, float]


def as_mask(tensor: Tensor) -> Sides | None:
    """The mask that a tensor may be: Boolean, zeros and ones, or zeros and -inf (or at most -1e4)."""
    if tensor.layout is not torch.strided or not tensor.numel() or tensor.ndim < 2 or tensor.is_complex():
        return None
    sizes = [size for axis, size in enumerate(tensor.shape) if size > 1 or axis == 0]
    core, values = tensor != 0, (0.0, 1.0)
    if tensor.dtype != torch.bool and not bool((~core | (tensor == 1)).all()):
        if not tensor.is_floating_point() or not bool((~core | (tensor <= EXCLUDED)).all()):
            return None
        core, values = ~core, (float(tensor.min()), 0.0)
    return Sides(core.reshape(sizes), values) if len(sizes) > 1 else None


def by_diagonal(pairs: Tensor, size: int) -> Tensor:
    """A causal mask of two dimensions for another number of positions: what counts is which is the later one."""
    steps = torch.arange(size, device=pairs.device)
    later = steps - steps[:, None]
    return torch.where(later > 0, pairs[0, -1], torch.where(later < 0, pairs[-1, 0], pairs[0, 0]))


def is_causal(core: Tensor) -> bool:
    """Whether a mask for pairs of positions is causal, and nothing else."""
    pairs = core.reshape(-1, *core.shape[-2:])[0]
    differs = len(pairs) == pairs.shape[1] and bool(pairs[0, -1] != pairs[-1, 0])
    return differs and torch.equal(by_diagonal(pairs, len(pairs)).expand(core.shape), core)


@dataclass(frozen=True)
class Laid:
    """A mask laid on data."""

    #: Boolean, of the leading dimensions of the data, or with sizes of 1; True = real
    real: Tensor
    #: axes of the data
    samples: int
    positions: tuple[int, ...]
    #: which value of a mask's core is real; None for lengths
    side: bool | None = None
    #: whether the mask itself has its samples along the second axis
    turned: int = 0

    def ordered(self, data: Tensor) -> Tensor:
        """The data with samples first, then positions, then all else along one axis."""
        axes = (self.samples, *self.positions)
        rest = [axis for axis in range(data.ndim + 1) if axis not in axes]
        return data.unsqueeze(-1).permute(*axes, *rest).flatten(len(axes))

    def in_order(self) -> Tensor:
        """The mask with its samples first, then positions."""
        return self.ordered(self.real).any(-1)

    @property
    def is_whole(self) -> bool:
        """Whether one sample has no padding."""
        return bool(self.in_order().flatten(1).all(1).any())

    @property
    def leaves_something(self) -> bool:
        """Whether each sample has something that is no padding."""
        return bool(self.in_order().flatten(1).any(1).all())

    @property
    def has_both(self) -> bool:
        """Whether there is padding and something else."""
        return bool(self.real.any()) and not bool(self.real.all())


def layouts(told: Sides | Tensor, data: Tensor) -> Iterable[Laid]:
    """All layouts in which a mask or lengths lie on data."""
    if isinstance(told, Tensor):
        return _laid_lengths(told, data) if data.ndim > 1 else []
    core = told.core.to(data.device)
    return [] if is_causal(core) else _laid_mask(core, data)


#: axes of data on which those of a mask may lie, and which of them are samples; the others are positions
_LAYOUTS: tuple[tuple[tuple[int, ...], int], ...] = (
    ((0, 1), 0), ((0, 2), 0), ((0, 1), 1), ((1, 0), 1), ((1, 0), 0), ((2, 0), 0), ((0, 1, 2), 0), ((0, 2, 3), 0),
)  # fmt: skip


def _laid_mask(core: Tensor, data: Tensor) -> Iterator[Laid]:
    """All layouts in which a mask lies on data, for both sides; of a mask of pairs also the keys that are seen."""
    pairs = core.ndim in (3, 4) and core.shape[-1] == core.shape[-2] and data.shape[-2:] != core.shape[-2:]
    for keys, side in [(keys, side) for keys in (False, True)[: 1 + pairs] for side in (True, False)]:
        mask = (core == side).flatten(1, -2).any(1) if keys else core == side
        for axes, samples in _LAYOUTS:
            fits = data.ndim > max(axes) if 1 in axes else data.ndim == max(axes) + 1
            fits &= mask.shape == tuple(data.shape[axis] for axis in axes if axis < data.ndim)
            turned = axes.index(samples)
            if fits and not (keys and turned):
                positions = tuple(sorted({*axes} - {samples}))
                yield Laid(_spread(mask, axes), samples, positions, side, turned)


def _spread(core: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The mask with its axes where the data have them, and sizes of 1 between."""
    order = sorted(range(core.ndim), key=lambda axis: axes[axis])
    size = dict(zip(axes, core.shape, strict=True))
    return core.permute(order).reshape([size.get(axis, 1) for axis in range(max(axes) + 1)])


def _laid_lengths(lengths: Tensor, data: Tensor) -> list[Laid]:
    """All layouts in which lengths, or shares of the longest, lie on data, first along the axis of the largest."""
    found: list[tuple[bool, Laid]] = []
    for samples, positions in [*((0, axis) for axis in range(1, data.ndim)), (1, 0)]:
        size = data.shape[positions]
        held = (lengths * size).round().long() if lengths.is_floating_point() else lengths
        if data.shape[samples] == len(held) and 1 < size >= (longest := int(held.max())):
            steps, held = torch.arange(size, device=data.device), held.to(data.device)[:, None]
            for real in (steps < held, steps >= size - held):
                laid = Laid(_spread(real, (samples, positions)), samples, (positions,))
                found.append((size != longest, laid))
    return [laid for _, laid in sorted(found, key=itemgetter(0))]


def alike(data: Tensor, laid: Laid) -> int:
    """How many padded positions hold the same in data that is not alike elsewhere; 0 if the data do not agree."""
    real, held = (laid.in_order(), laid.ordered(data)) if laid.positions else (laid.real, data[..., None])
    if laid.positions and not is_one_piece(real):
        return 0
    padded, kept = held[~real], held[real]
    count, value = len(padded), padded[:1]
    if count < _FEW or not bool((padded == value).all()) or bool((kept == value).all()):
        return 0
    few = count < _MANY and not data.is_floating_point()
    return 0 if few and bool((kept == value).all(-1).any()) else count


def is_one_piece(real: Tensor) -> bool:
    """Whether each sample's real positions are neighbours; those of an image have a corner and are a rectangle."""
    if real.ndim == 2:
        before = torch.cat([torch.zeros_like(real[:, :1]), real[:, :-1]], 1)
        return bool(((real & ~before).sum(1) <= 1).all())
    rows, columns = real.any(2), real.any(1)
    rectangle = torch.equal(real, rows[:, :, None] & columns[:, None])
    ends = all(bool((side[:, 0] | side[:, -1] | ~side.any(1)).all()) for side in (rows, columns))
    return rectangle and ends and is_one_piece(rows) and is_one_piece(columns)


def ends_in_runs(data: Tensor) -> Tensor | None:
    """Where data are real, if rows begin or end in runs of one id (or zero vector) that is nowhere else; else None."""
    # by chance 0.2 % of batches without padding look so: at least two rows, one run of two, four positions in all
    if data.ndim < 2 or min(data.shape[:2]) < 2:
        return None
    vectors = data.flatten(2) if data.ndim > 2 else data[..., None]
    for edge in (vectors[:, -1], vectors[:, 0]):
        values, counts = edge.unique(dim=0, return_counts=True)
        for value in [torch.zeros_like(edge[0])] if data.is_floating_point() else values[counts > 1]:
            padded = (vectors == value).all(-1)
            per_row = padded.sum(1)
            enough = int((per_row > 0).sum()) >= 2 and int(per_row.max()) >= 2 and int(per_row.sum()) >= _MANY
            if enough and not bool(padded.all()) and is_one_piece(~padded):
                return ~padded
    return None


def padded_ids(ids: Tensor, padding_idx: int) -> Tensor | None:
    """Where ids are real, if the id of padding stands at ends of rows (or columns) and nowhere else; None otherwise."""
    if ids.ndim < 2 or ids.is_floating_point() or not bool((ids != padding_idx).any()):
        return None
    real = ids != padding_idx
    starts = real.clone()
    starts[..., 0] |= not bool(real[..., 0].any())  # a decoder starts with it
    found = next((mask for mask in (starts, real) if is_one_piece(mask.flatten(0, -2))), None)
    runs = ends_in_runs(ids.t()) if found is None and ids.ndim == 2 else None
    found = real if runs is not None and torch.equal(runs.t(), real) else found
    return None if found is None or bool(found.all()) else found


def marked(key: Key, held: Tensor | MaskedTensor) -> Padding | None:
    """Padding that a tensor itself marks."""
    real, source = None, ""
    if isinstance(held, MaskedTensor):
        real, source = held.mask.clone(), "the pattern of the MaskedTensor"
    elif held.is_floating_point():
        real, source = ~held.isnan(), "NaN"
    elif held.dtype == torch.int64:
        real, source = held != IGNORED, f"labels of {IGNORED}"
        if bool(real.all()) and held.ndim == 2 and held.numel():  # another label that a loss ignores
            runs = ends_in_runs(held) if bool((held < 0).any()) else None
            if runs is not None and torch.equal(held >= 0, runs):
                real, source = runs, f"labels of {int(held.min())}"
    return None if real is None or bool(real.all()) else Padding(key, real, source)
