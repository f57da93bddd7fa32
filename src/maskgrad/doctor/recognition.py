"""What is padding in a batch: as it was told, or as the batch itself shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.batches import Key, fields, tensor_of
from maskgrad.errors import ExaminationError
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["IGNORED", "Padding", "recognised"]

#: the label that PyTorch's losses ignore
IGNORED = -100
_LENGTHS = ("length", "lens", "seq_len", "seqlen", "num_tokens")


@dataclass(frozen=True)
class Padding:
    """Which entries of one tensor of the batch are real, and how that is known."""

    key: Key
    #: Boolean, of the leading dimensions of the tensor, or of its shape with sizes of 1
    mask: Tensor
    source: str
    #: the key of the tensor that says so, if it is in the batch
    mask_key: Key | None = None
    #: the mask has the meaning of `True = padding` in the batch
    inverted: bool = False

    def entries(self, tensor: Tensor) -> Tensor:
        """The mask in the shape of the tensor."""
        return _aligned(self.mask, tensor).expand(tensor.shape)


def recognised(batch: Any, padding: Mapping[Key, Any] | None) -> list[Padding]:
    """The padding of each tensor of a batch.

    Args:
        batch: dict, tuple, list, dataclass or tensor.
        padding: for each key a mask (True = real) or the key of a mask in the batch; None to find out.

    Raises:
        ExaminationError: a key is not in the batch, or a mask does not fit.
    """
    inside = fields(batch)
    if padding is None:
        return _found(inside)
    if isinstance(padding, (Tensor, str)) or not isinstance(padding, Mapping):
        raise ExaminationError(
            f"padding: expected a mapping from keys of the batch to masks or keys of masks, "
            f"found {type(padding).__name__}; write padding={{{next(iter(inside), 'x')!r}: mask}}"
        )
    return [_told(inside, key, mask) for key, mask in padding.items()]


def _told(inside: dict[Key, Tensor | MaskedTensor], key: Key, given: Any) -> Padding:
    known = f"the batch has {', '.join(map(repr, inside)) or 'no tensors'}"
    if key not in inside:
        raise ExaminationError(f"padding: {key!r} is no key of the batch; {known}")
    mask_key: Key | None = None
    if not isinstance(given, Tensor):
        if isinstance(given, MaskedTensor) or given not in inside:
            raise ExaminationError(
                f"padding[{key!r}]: expected a Boolean tensor or the key of one, found {given!r}; {known}"
            )
        mask_key, given = given, tensor_of(inside[given])
    tensor = tensor_of(inside[key])
    if given.dtype != torch.bool and not bool(((given == 0) | (given == 1)).all()):
        raise ExaminationError(
            f"padding[{key!r}]: expected a mask, Boolean or of zeros and ones, found other numbers; "
            f"lengths make one: torch.arange(size) < lengths[:, None]"
        )
    mask = given if given.dtype == torch.bool else given != 0
    try:
        fits = _aligned(mask, tensor).expand(tensor.shape) is not None
    except RuntimeError:
        fits = False
    if not fits:
        raise ExaminationError(
            f"padding[{key!r}]: a mask of shape {tuple(mask.shape)} does not fit the tensor of shape "
            f"{tuple(tensor.shape)}; give a mask of its leading dimensions, such as {tuple(tensor.shape[: mask.ndim])}"
        )
    return Padding(key, mask, "given", mask_key)


def _aligned(mask: Tensor, tensor: Tensor) -> Tensor:
    """The mask with as many dimensions as the tensor: leading dimensions are matched first."""
    if mask.ndim <= tensor.ndim and all(
        size in (1, wanted) for size, wanted in zip(mask.shape, tensor.shape, strict=False)
    ):
        return mask.reshape(*mask.shape, *(1,) * (tensor.ndim - mask.ndim))
    return mask


def _found(inside: dict[Key, Tensor | MaskedTensor]) -> list[Padding]:
    masks = {key: found for key, field in inside.items() if (found := _as_mask(key, field)) is not None}
    lengths = {key: field for key, field in inside.items() if _is_lengths(key, field, inside)}
    paddings = []
    for key, field in inside.items():
        if key in masks or key in lengths:
            continue
        padding = _own(key, field) or _by_mask(key, field, masks) or _by_lengths(key, field, lengths)
        if padding is not None and not bool(padding.mask.all()):
            paddings.append(padding)
    return paddings


def _own(key: Key, field: Tensor | MaskedTensor) -> Padding | None:
    """Padding that the tensor itself marks."""
    if isinstance(field, MaskedTensor):
        if field.layout is not torch.strided:
            return None
        return Padding(key, field.mask.clone(), "the pattern of the MaskedTensor")
    if field.layout is not torch.strided:
        return None
    if field.is_floating_point() and bool(field.isnan().any()):
        return Padding(key, ~field.isnan(), "NaN")
    if field.dtype == torch.int64 and bool((field == IGNORED).any()):
        return Padding(key, field != IGNORED, f"labels of {IGNORED}")
    return None


def _as_mask(key: Key, field: Tensor | MaskedTensor) -> tuple[Tensor, bool] | None:
    """The mask that a tensor is, True = real, and whether it was turned round; None if it is no mask."""
    if isinstance(field, MaskedTensor) or field.layout is not torch.strided or field.ndim < 2:
        return None
    named = isinstance(key, str) and "mask" in key.lower()
    if field.dtype != torch.bool:
        if not named or not bool(((field == 0) | (field == 1)).all()):
            return None
        field = field != 0
    if not named and isinstance(key, str):
        return None
    if field.ndim != 2 or field.numel() == 0:
        return None
    name = key.lower() if isinstance(key, str) else ""
    turned = ("padding_mask" in name or "pad_mask" in name) and not bool(field[:, 0].all())
    return (~field if turned else field), turned


def _by_mask(key: Key, field: Tensor | MaskedTensor, masks: dict[Key, tuple[Tensor, bool]]) -> Padding | None:
    tensor = tensor_of(field)
    fitting = [name for name, (mask, _) in masks.items() if tensor.shape[: mask.ndim] == mask.shape]
    if not fitting:
        return None
    best = max(fitting, key=lambda name: _likeness(str(name), str(key)))
    mask, turned = masks[best]
    return Padding(key, mask, f"the mask {best!r}", best, turned)


def _likeness(mask: str, key: str) -> int:
    """How many letters the names begin with in common: `decoder_attention_mask` is for `decoder_input_ids`."""
    shorter = min(len(mask), len(key))
    return next((place for place, (a, b) in enumerate(zip(mask, key, strict=False)) if a != b), shorter)


def _is_lengths(key: Key, field: Tensor | MaskedTensor, inside: dict[Key, Tensor | MaskedTensor]) -> bool:
    if isinstance(field, MaskedTensor) or field.ndim != 1 or field.numel() == 0:
        return False
    if field.is_floating_point() or field.dtype == torch.bool:
        return False
    if isinstance(key, str):
        return any(word in key.lower() for word in _LENGTHS) and bool((field >= 0).all())
    longest = int(field.max())
    return bool((field > 0).all()) and any(
        tensor_of(other).ndim >= 2 and tensor_of(other).shape[:2] == (len(field), longest)
        for other in inside.values()
        if other is not field
    )


def _by_lengths(
    key: Key, field: Tensor | MaskedTensor, lengths: dict[Key, Tensor | MaskedTensor]
) -> Padding | None:
    tensor = tensor_of(field)
    fitting = {
        name: tensor_of(length)
        for name, length in lengths.items()
        if tensor.ndim >= 2
        and tensor.shape[0] == length.shape[0]
        and tensor.shape[1] >= int(tensor_of(length).max())
    }
    if not fitting:
        return None
    best = max(
        fitting,
        key=lambda name: (tensor.shape[1] == int(fitting[name].max()), _likeness(str(name), str(key))),
    )
    steps = torch.arange(tensor.shape[1], device=tensor.device)
    return Padding(key, steps < fitting[best].to(tensor.device)[:, None], f"the lengths {best!r}", best)
