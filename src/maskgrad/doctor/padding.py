"""Which entries of a tensor are padding, and how that is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.doctor.evidence import EXCLUDED
from maskgrad.doctor.operations import expanded
from maskgrad.errors import ExaminationError
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.patterns.mask_arguments import boolean_mask

__all__ = ["IGNORED", "SAYS_PADDING", "Padding", "lengths_mask", "with_given"]

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

    def entries(self, tensor: Tensor) -> Tensor:
        """The mask in the shape of the tensor."""
        return expanded(self.mask, tensor.shape)

    @property
    def may_hold_nan(self) -> bool:
        """Whether NaN under it is what marks it, or is allowed there."""
        return self.source in ("NaN", "the pattern of the MaskedTensor")

    @property
    def is_marked(self) -> bool:
        """Whether the padding is recognised by its value: -100, NaN, an id."""
        return self.source == "NaN" or self.source.startswith(
            ("labels", "padding_idx", "ignore_index", "the id")
        )


def lengths_mask(lengths: Tensor, columns: int, device: torch.device) -> Tensor:
    """The mask of sequences of these lengths."""
    return torch.arange(columns, device=device) < lengths.to(device)[:, None]


def given_paddings(batch: Any, padding: Mapping[Key, Any]) -> list[Padding]:
    """The padding that the caller names.

    Args:
        batch: dict, tuple, list, dataclass or tensor.
        padding: for each key a mask (True = real), the key of a mask or lengths in the batch, or the id of padding.

    Raises:
        ExaminationError: a key is not in the batch, or a mask does not fit.
    """
    inside = fields(batch)
    if isinstance(padding, (Tensor, str)) or not isinstance(padding, Mapping):
        raise ExaminationError(
            f"padding: expected a mapping from keys of the batch to masks or keys of masks, "
            f"found {type(padding).__name__}; write padding={{{next(iter(inside), 'x')!r}: mask}}"
        )
    return [_given(inside, key, mask) for key, mask in padding.items()]


def with_given(recognised: Sequence[Padding], batch: Any, given: Mapping[Key, Any] | None) -> list[Padding]:
    """What was recognised, but for the keys that the caller names."""
    named = [] if given is None else given_paddings(batch, given)
    keys = {padding.key for padding in named}
    return [*named, *(padding for padding in recognised if padding.key not in keys)]


def _given(inside: dict[Key, Tensor | MaskedTensor], key: Key, given: Any) -> Padding:
    known = f"the batch has {', '.join(map(repr, inside)) or 'no tensors'}"
    if key not in inside:
        raise ExaminationError(f"padding: {key!r} is not a key of the batch; {known}")
    mask_key: Key | None = None
    tensor = tensor_of(inside[key])
    if type(given) is int and given not in inside:
        return Padding(key, tensor != given, f"the id {given}")
    inverted = isinstance(given, str) and given.startswith("~")
    given = given[1:] if inverted else given
    if not isinstance(given, Tensor):
        if isinstance(given, MaskedTensor) or given not in inside:
            raise ExaminationError(
                f"padding[{key!r}]: expected a Boolean tensor, the key of one, or the id of padding, found {given!r}; "
                f"{known}"
            )
        mask_key, given = given, tensor_of(inside[given])
    counts = given.ndim == 1 and given.dtype in (torch.int64, torch.int32) and len(given) == len(tensor) > 0
    if (
        counts and not inverted and tensor.ndim > 1 and int(given.max()) > 1
    ):  # lengths, and no mask of samples
        return Padding(
            key, lengths_mask(given, tensor.shape[1], tensor.device), "given", _named({mask_key: None})
        )
    additive = given.is_floating_point() and bool(((given == 0) | (given <= EXCLUDED)).all())
    if additive or (given.is_floating_point() and bool(((given == 0) | (given == 1)).all())):
        value = float(given.min()) if additive else float(inverted)
        given = given == 0 if additive else given != 0  # a batch may hold such masks under a key
    else:
        value = float(inverted)
    try:
        mask = boolean_mask(given, f"padding[{key!r}]", "real")
    except (TypeError, ValueError) as error:
        raise ExaminationError(str(error)) from None
    mask = ~mask if inverted else mask
    fitted = _fitted(mask, tensor)
    if fitted is None:
        raise ExaminationError(
            f"padding[{key!r}]: a mask of shape {tuple(mask.shape)} does not fit the tensor of shape "
            f"{tuple(tensor.shape)}; give a mask of its leading dimensions, such as {tuple(tensor.shape[: mask.ndim])}"
        )
    found = Padding(key, fitted, "given", _named({mask_key: value}))
    _question(found, tensor, mask_key)
    return found


def _named(by: dict[Any, float | None]) -> dict[Key, float | None]:
    return {key: value for key, value in by.items() if key is not None}


def _fitted(mask: Tensor, tensor: Tensor) -> Tensor | None:
    """The mask as it lies on a tensor; also without sizes of 1, as attention takes it, or before the channels."""
    plain = mask.reshape([size for axis, size in enumerate(mask.shape) if size > 1 or axis == 0])
    forms = [mask, plain]
    if tensor.ndim == plain.ndim + 1 and plain.ndim > 1:
        forms.append(plain[:, None])
    for form in forms:
        if form.ndim <= tensor.ndim:
            try:
                expanded(form, tensor.shape)
            except RuntimeError:
                continue
            return form
    return None


def _question(padding: Padding, tensor: Tensor, mask_key: Key | None) -> None:
    """ExaminationError for a mask that is True where padding looks to be: one value, at one end of the rows."""
    real = padding.entries(tensor)
    inside, outside = tensor[real], tensor[~real]
    if not inside.numel() or not outside.numel() or not bool((inside == inside[0]).all()):
        return
    places = padding.mask.flatten(1) if padding.mask.ndim > 1 else padding.mask[None]
    ends = bool(places[:, 0].any()) != bool(places[:, -1].any())
    if ends and not bool((outside == outside[0]).all()):
        instead = f"'~{mask_key}'" if isinstance(mask_key, str) else "~mask"
        raise ExaminationError(
            f"padding[{padding.key!r}]: the mask is True where the tensor is constantly {inside[0].item()}, at one "
            f"end of the rows: True means real, not padding; invert it, padding={{{padding.key!r}: {instead}}}"
        )
