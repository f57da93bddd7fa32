"""Batches of any form: the tensors in them by key, and which of their entries are padding."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
from collections.abc import Hashable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from maskgrad.doctor.operations import expanded
from maskgrad.errors import ExaminationError
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.patterns.mask_arguments import boolean_mask

__all__ = [
    "IGNORED",
    "Key",
    "Padding",
    "fields",
    "ragged",
    "recognised",
    "replaced",
    "tensor_of",
    "with_own_memory",
]

Key = Hashable
_LEAVES = (Tensor, MaskedTensor, PackedSequence)


def fields(batch: Any) -> dict[Key, Tensor | MaskedTensor]:
    """The tensors of a batch that may be padded, by key: names of a mapping or dataclass, positions of a tuple or list.

    A batch that is a tensor has the key 0. What lies deeper has the keys on its way, joined by dots.
    """
    return {key: leaf for key, leaf in _leaves(batch).items() if not _is_ragged(leaf)}


def ragged(batch: Any) -> dict[Key, Any]:
    """What holds samples of different lengths one after the other, and no padding: jagged, nested, packed."""
    return {key: leaf for key, leaf in _leaves(batch).items() if _is_ragged(leaf)}


def _is_ragged(leaf: Any) -> bool:
    if isinstance(leaf, MaskedTensor):
        return leaf.layout is torch.jagged
    return isinstance(leaf, PackedSequence) or bool(leaf.is_nested)


def _leaves(batch: Any) -> dict[Key, Any]:
    if isinstance(batch, _LEAVES):
        return {0: batch}
    found: dict[Key, Any] = {}
    for key, part in _parts(batch):
        if isinstance(part, _LEAVES):
            found[key] = part
        else:
            for deeper, leaf in _leaves(part).items():
                found[f"{key}.{deeper}"] = leaf
    return found


def replaced(batch: Any, new: Mapping[Key, Any], *, above: str = "") -> Any:
    """The batch with the tensors at the keys of ``new`` replaced; everything else is shared."""
    if isinstance(batch, _LEAVES):
        return new.get(0, batch)
    changed: dict[Any, Any] = {}
    for key, part in _parts(batch):
        place: Key = f"{above}{key}" if above else key
        if isinstance(part, _LEAVES):
            if place in new:
                changed[key] = new[place]
        else:
            other = replaced(part, new, above=f"{place}.")
            if other is not part:
                changed[key] = other
    return _with(batch, changed) if changed else batch


def with_own_memory(batch: Any) -> Any:
    """The batch with a copy of each tensor that was expanded: entries that share memory cannot differ."""
    expanded = {
        key: field.detach().clone().requires_grad_(field.requires_grad)
        for key, field in fields(batch).items()
        if isinstance(field, Tensor)
        and field.layout is torch.strided
        and any(stride == 0 and size > 1 for size, stride in zip(field.shape, field.stride(), strict=True))
    }
    return replaced(batch, expanded) if expanded else batch


def tensor_of(field: Tensor | MaskedTensor) -> Tensor:
    """The plain tensor whose memory the field uses."""
    return field._values if isinstance(field, MaskedTensor) else field


def _parts(batch: Any) -> list[tuple[Any, Any]]:
    if isinstance(batch, Mapping):
        return list(batch.items())
    if isinstance(batch, (tuple, list)):
        return list(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return [(field.name, getattr(batch, field.name)) for field in dataclasses.fields(batch)]
    return []


def _with(batch: Any, changed: dict[Any, Any]) -> Any:
    if isinstance(batch, MutableMapping):
        other = copy.copy(batch)
        if getattr(other, "data", None) is getattr(batch, "data", other):
            # a mapping of another library that keeps its items in an attribute
            other.data = dict(batch.data)  # type: ignore[attr-defined]
        other.update(changed)
        return other
    if isinstance(batch, Mapping):
        return {**batch, **changed}
    if isinstance(batch, (tuple, list)):
        parts = [changed.get(place, part) for place, part in enumerate(batch)]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    other = copy.copy(batch)
    for name, part in changed.items():
        object.__setattr__(other, name, part)
    return other


#: the label that PyTorch's losses ignore
IGNORED = -100
#: a mask of what the loss counts says nothing of inputs: a prompt is read, and has no loss
_OF_THE_LOSS = re.compile(r"(loss|label|target|completion|action)s?_mask", re.IGNORECASE)
#: a mask of what was observed in a series says nothing of other tensors, such as its calendar
_OF_VALUES = re.compile(r"(.*?)(observed|missing)", re.IGNORECASE)
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
        return expanded(self.mask, tensor.shape)


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
    return [_given(inside, key, mask) for key, mask in padding.items()]


def _given(inside: dict[Key, Tensor | MaskedTensor], key: Key, given: Any) -> Padding:
    known = f"the batch has {', '.join(map(repr, inside)) or 'no tensors'}"
    if key not in inside:
        raise ExaminationError(f"padding: {key!r} is not a key of the batch; {known}")
    mask_key: Key | None = None
    tensor = tensor_of(inside[key])
    if type(given) is int and given not in inside:  # the id of padding
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
        steps = torch.arange(tensor.shape[1], device=tensor.device)
        return Padding(key, steps < given.to(tensor.device)[:, None], "given", mask_key)
    if given.is_floating_point() and bool(((given == 0) | (given == 1)).all()):
        given = given != 0  # a batch may hold such a mask under a key; an additive one has other values
    try:
        mask = boolean_mask(given, f"padding[{key!r}]", "real")
    except (TypeError, ValueError) as error:
        raise ExaminationError(str(error)) from None
    mask = ~mask if inverted else mask
    try:
        expanded(mask, tensor.shape)
    except RuntimeError:
        raise ExaminationError(
            f"padding[{key!r}]: a mask of shape {tuple(mask.shape)} does not fit the tensor of shape "
            f"{tuple(tensor.shape)}; give a mask of its leading dimensions, such as {tuple(tensor.shape[: mask.ndim])}"
        ) from None
    found = Padding(key, mask, "given", mask_key, inverted)
    _question(found, tensor, mask_key)
    return found


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


def _found(inside: dict[Key, Tensor | MaskedTensor]) -> list[Padding]:
    masks = {key: found for key, field in inside.items() if (found := _as_mask(key, field)) is not None}
    lengths = {key: field for key, field in inside.items() if _is_lengths(key, field, inside)}
    paddings = []
    for key, field in inside.items():
        if key in masks or key in lengths:
            continue
        padding = _own(key, field) or _by_mask(key, field, masks) or _by_lengths(key, field, lengths)
        if padding is not None and not bool(padding.mask.all()) and not _is_weight_of(field, key, padding):
            paddings.append(padding)
    return paddings


def _is_weight_of(field: Tensor | MaskedTensor, key: Key, padding: Padding) -> bool:
    """Whether a tensor says by zeros that padding does not count: it is a mask, and no data."""
    tensor = tensor_of(field)
    return "weight" in str(key).lower() and not bool(tensor[~padding.entries(tensor)].any())


def _own(key: Key, field: Tensor | MaskedTensor) -> Padding | None:
    """Padding that the tensor itself marks."""
    if field.layout is not torch.strided:
        return None
    if isinstance(field, MaskedTensor):
        return Padding(key, field.mask.clone(), "the pattern of the MaskedTensor")
    if field.is_floating_point() and bool(field.isnan().any()):
        return Padding(key, ~field.isnan(), "NaN")
    if field.dtype == torch.int64 and bool((field == IGNORED).any()):
        return Padding(key, field != IGNORED, f"labels of {IGNORED}")
    return None


def _as_mask(key: Key, field: Tensor | MaskedTensor) -> tuple[Tensor, bool] | None:
    """The mask that a tensor is, True = real, and whether it was turned round; None if it is no mask."""
    if isinstance(field, MaskedTensor) or field.layout is not torch.strided:
        return None
    name = key.lower() if isinstance(key, str) else None
    if field.ndim < 2 or field.numel() == 0 or (name is not None and "mask" not in name):
        return None
    if field.ndim > 2 and (name is None or "att" in name or "causal" in name):  # who may look at whom
        return None
    if field.dtype != torch.bool:
        if name is None or not bool(((field == 0) | (field == 1)).all()):
            return None
        field = field != 0
    inverted = (
        name is not None and ("padding_mask" in name or "pad_mask" in name) and not bool(field[:, 0].all())
    )
    return (~field if inverted else field), inverted


def _by_mask(key: Key, field: Tensor | MaskedTensor, masks: dict[Key, tuple[Tensor, bool]]) -> Padding | None:
    tensor = tensor_of(field)
    fitting = {
        name: fitted
        for name, (mask, _) in masks.items()
        if (fitted := _fitted(mask, name, tensor, key)) is not None
        and (_is_asked(key) or not _OF_THE_LOSS.search(str(name)))
    }
    if not fitting:
        return None
    best = max(fitting, key=lambda name: _likeness(name, key))
    return Padding(key, fitting[best], f"the mask {best!r}", best, masks[best][1])


def _fitted(mask: Tensor, name: Key, tensor: Tensor, key: Key) -> Tensor | None:
    """The mask as it lies on a tensor: on its leading dimensions, or on all but the channels of images."""
    of_values = _OF_VALUES.match(str(name))
    if of_values and (tensor.shape != mask.shape or not str(key).startswith(of_values[1])):
        return None
    if tensor.shape[: mask.ndim] == mask.shape:
        return mask
    if mask.ndim > 2 and tensor.ndim == mask.ndim + 1 and tensor.shape[:1] + tensor.shape[2:] == mask.shape:
        return mask[:, None]
    return None


def _is_asked(key: Key) -> bool:
    """Whether a name says that the loss reads it."""
    return any(
        word in str(key).lower() for word in ("label", "target", "weight", "advantage", "reward", "logprob")
    )


def _likeness(mask: Key, key: Key) -> int:
    """How many letters the names begin with in common: `decoder_attention_mask` is for `decoder_input_ids`."""
    pairs = zip(str(mask), str(key), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _is_lengths(key: Key, field: Tensor | MaskedTensor, inside: dict[Key, Tensor | MaskedTensor]) -> bool:
    if isinstance(field, MaskedTensor) or field.ndim != 1 or field.numel() == 0:
        return False
    if field.is_floating_point() or field.dtype == torch.bool:
        return False
    if isinstance(key, str):
        return any(word in key.lower() for word in _LENGTHS) and bool((field >= 0).all())
    shape = (len(field), int(field.max()))
    return bool((field > 0).all()) and any(tensor_of(other).shape[:2] == shape for other in inside.values())


def _by_lengths(
    key: Key, field: Tensor | MaskedTensor, lengths: dict[Key, Tensor | MaskedTensor]
) -> Padding | None:
    tensor = tensor_of(field)
    if tensor.ndim < 2:
        return None
    rows, columns = tensor.shape[:2]
    longest = {key: int(tensor_of(held).max()) for key, held in lengths.items() if held.shape[0] == rows}
    fitting = [name for name, size in longest.items() if size <= columns]
    if not fitting:
        return None
    best = max(fitting, key=lambda name: (longest[name] == columns, _likeness(name, key)))
    steps = torch.arange(columns, device=tensor.device)
    mask = steps < tensor_of(lengths[best]).to(tensor.device)[:, None]
    return Padding(key, mask, f"the lengths {best!r}", best)
