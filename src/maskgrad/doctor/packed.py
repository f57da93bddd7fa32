"""Packed batches: which document each token belongs to, and the same batch for one document alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.batches import Key, applied, fields, replaced, tensor_of
from maskgrad.doctor.padding import IGNORED
from maskgrad.doctor.signs import LABELS
from maskgrad.errors import ExaminationError
from maskgrad.masked_tensor import MaskedTensor, masked

__all__ = [
    "WEIGHT",
    "Documents",
    "alone",
    "content",
    "documents_of",
    "is_structure",
    "positions_of",
    "shapes_of_positions",
    "with_labels",
]

#: the weight of each position of a model's outputs, next to its arguments
WEIGHT = "weight of the doctor"
#: Names under which programs pass a number for each token; positions, which start again; and bounds.
_NUMBERS = re.compile("seq_idx|(document|doc|segment|sequence)_ids|document_id")
_POSITIONS = re.compile("position_ids|input_pos|positions")
_BOUNDS = re.compile("cu_(seq|doc).*")
_WEIGHTS = ("weight", "loss_mask", "completion_mask", "label_mask", "target_mask")


@dataclass(frozen=True)
class Documents:
    """Which document each token of a batch belongs to."""

    #: numbers from 0, -1 for tokens of none, in the shape of the tokens: (tokens,) or (rows, tokens)
    ids: Tensor
    #: how that is known
    source: str
    #: the key of the batch with them
    key: Key | None = None

    @property
    def count(self) -> int:
        """Number of documents."""
        return int(self.ids.max()) + 1

    def of(self, tensor: Tensor) -> Tensor | None:
        """The numbers for the leading dimensions of a tensor; None if it has no value for each token."""
        ids = self.ids.to(tensor.device)
        for form in (ids, ids.squeeze(0), ids.unsqueeze(0)):
            if tensor.shape[: form.ndim] == form.shape:
                return form
        return None


def documents_of(batch: Any, given: Any = None) -> Documents | None:
    """The documents of a batch, as they are given or recognised by the names of its keys; None if there are none.

    Raises:
        ExaminationError: what is given is no key of the batch, or does not fit the tokens.
    """
    inside = fields(batch)
    if given is None:
        padded = any(
            "attention_mask" in _name(key) and not bool(tensor_of(mask).bool().all())
            for key, mask in inside.items()
        )
        readers = [(_NUMBERS, _numbered), (_BOUNDS, _bounded)]
        if not padded:  # else positions that start again are no sign of documents
            readers.append((_POSITIONS, _restarted))
        for names, read in readers:
            for key, field in inside.items():
                found = read(key, tensor_of(field), inside) if names.fullmatch(_name(key)) else None
                if found is not None and found.count > 1:
                    return found
        return None
    one = isinstance(given, Mapping) and len(given) == 1
    key, ids = next(iter(given.items())) if one else (given, None)
    if isinstance(key, (Tensor, Mapping)) or key not in inside:
        known = ", ".join(map(repr, inside)) or "no tensors"
        raise ExaminationError(
            f"documents: expected a key of the batch, which has {known}, or integers for one key; write "
            "documents='seq_idx', or documents={'input_ids': document_of_each_token}"
        )
    tensor = tensor_of(inside[key])
    if ids is not None:
        fits = isinstance(ids, Tensor) and ids.ndim in (1, 2) and ids.shape == tensor.shape[: ids.ndim]
        if not fits or not _are_numbers(ids):
            is_tensor = isinstance(ids, Tensor)
            held = f"{ids.dtype} of shape {tuple(ids.shape)}" if is_tensor else type(ids).__name__
            raise ExaminationError(
                f"documents[{key!r}]: expected an integer for each token, of shape {tuple(tensor.shape[:2])}, found "
                f"{held}; number the documents, such as torch.tensor([[0, 0, 1]])"
            )
        counted = _counted(ids)
        # the same numbers in the batch are structure, not tokens to be hidden from others
        same = (other for other, field in inside.items() if _tells(tensor_of(field), counted))
        return Documents(counted, "given", next(same, None))
    found = _bounded(key, tensor, inside) or _restarted(key, tensor, inside) or _numbered(key, tensor, inside)
    if found is None:
        raise ExaminationError(
            f"documents={key!r}: it has neither an id for each token, positions that restart at 0, nor bounds "
            "from 0 to the number of tokens; pass documents={'input_ids': document_of_each_token}"
        )
    return found


def _name(key: Key) -> str:
    return str(key).rpartition(".")[2].lower()


def is_structure(key: Key) -> bool:
    """Whether a key holds the structure of a pack instead of tokens."""
    name = _name(key)
    structured = any(names.fullmatch(name) for names in (_NUMBERS, _POSITIONS, _BOUNDS))
    return structured or name.startswith("max_") or "mask" in name


def _numbered(key: Key, tensor: Tensor, inside: Mapping[Key, Any]) -> Documents | None:
    if not _are_numbers(tensor) or tensor.ndim not in (1, 2):
        return None
    return Documents(_counted(tensor), f"the ids {key!r}", key)


def _restarted(key: Key, tensor: Tensor, inside: Mapping[Key, Any]) -> Documents | None:
    """Positions that start again at 0."""
    if not _are_numbers(tensor) or tensor.ndim not in (1, 2):
        return None
    starts = tensor == 0
    follows = torch.ones_like(starts)
    follows[..., 1:] = (tensor[..., 1:] == tensor[..., :-1] + 1) | starts[..., 1:]
    if not bool(starts[..., 0].all() and follows.all()):
        return None
    return Documents(_counted(starts.cumsum(-1)), f"the restarting positions {key!r}", key)


def _bounded(key: Key, tensor: Tensor, inside: Mapping[Key, Any]) -> Documents | None:
    """Bounds of documents: 0, then the end of each."""
    if not _are_numbers(tensor) or tensor.ndim != 1:
        return None
    if len(tensor) < 2 or int(tensor[0]) != 0 or bool((tensor.diff() < 0).any()):
        return None
    tokens = int(tensor[-1])
    shapes = [tensor_of(field).shape for other, field in inside.items() if other != key]
    flat = [shape for shape in shapes if shape[:1] == (tokens,) or shape[:2] == (1, tokens)]
    if not flat:
        return None
    ids = torch.repeat_interleave(torch.arange(len(tensor) - 1, device=tensor.device), tensor.diff())
    return Documents(ids if flat[0][:1] == (tokens,) else ids[None], f"the bounds {key!r}", key)


def _are_numbers(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided and tensor.numel() > 0 and tensor.dtype in (torch.int64, torch.int32)
    )


def _tells(tensor: Tensor, counted: Tensor) -> bool:
    """Whether a tensor holds these numbers of documents, counted from wherever."""
    return tensor.shape == counted.shape and _are_numbers(tensor) and torch.equal(_counted(tensor), counted)


def _counted(ids: Tensor) -> Tensor:
    """Documents numbered from 0 without gaps, in different rows different ones; -1: none, as for zeros at the end."""
    none = ids < 0
    if bool((ids[..., -1] == 0).any() and (ids > 0).any()):  # numbers from 1, and 0 where no document is
        tail = (ids != 0).flip(-1).cumsum(-1).flip(-1) == 0
        none = none | (tail & (ids > 0).any(-1, keepdim=True))
    rows = torch.arange(len(ids), device=ids.device)[:, None] if ids.ndim == 2 else 0
    found = torch.full_like(ids, -1, dtype=torch.int64)
    found[~none] = torch.unique((rows * (int(ids.max()) + 1) + ids)[~none], return_inverse=True)[1]
    return found


def shapes_of_positions(batch: Any) -> list[tuple[int, ...]]:
    """The shapes (samples, positions) that a batch may have, those of most tensors first.

    Integers of two dimensions first; floats of two dimensions only where nothing else is: they may be features.
    """
    tensors = [tensor for field in fields(batch).values() if (tensor := tensor_of(field)).ndim >= 2]
    ids = [tensor for tensor in tensors if tensor.ndim == 2 and _are_numbers(tensor)]
    surely = [tensor for tensor in tensors if tensor.ndim > 2 and tensor.is_floating_point()]
    shapes = [tuple(tensor.shape[:2]) for tensor in ids]
    others = [tuple(tensor.shape[:2]) for tensor in surely or ([] if ids else tensors)]
    found = [*sorted(shapes, key=shapes.count, reverse=True), *sorted(others, key=others.count, reverse=True)]
    return list(dict.fromkeys(shape for shape in found if shape[1] > 1))


def positions_of(batch: Any, shapes: Sequence[tuple[int, ...]] = ()) -> Documents | None:
    """The number of each position, in the shape (samples, positions) that is given, or that most tensors begin with."""
    weights = [
        tuple(field.shape) for key, field in fields(batch).items() if key == WEIGHT and field.ndim == 2
    ]
    shapes = weights or shapes or shapes_of_positions(batch)
    if not shapes:
        return None
    rows, columns = max(dict.fromkeys(shapes), key=list(shapes).count)
    return Documents(torch.arange(columns).expand(rows, columns), "positions") if columns > 1 else None


def content(batch: Any, documents: Documents) -> dict[Key, Tensor]:
    """The document of each value, by key, of tensors that hold something for each token and are no label."""
    labels = {key for key, _ in _labels(batch, documents)}
    found = {}
    for key, field in fields(batch).items():
        ids = documents.of(tensor_of(field))
        structure = is_structure(key) or key == documents.key
        if ids is not None and key not in labels and not structure and not _is_weight(key):
            found[key] = ids
    return found


def _is_weight(key: Key) -> bool:
    return any(word in _name(key) for word in _WEIGHTS)


def _labels(batch: Any, documents: Documents) -> list[tuple[Key, Any]]:
    """What the loss is asked for, by token or by document; in a batch without names the last tensor by token."""
    inside = {
        key: field for key, field in fields(batch).items() if not is_structure(key) and key != documents.key
    }
    named = [
        (key, field) for key, field in inside.items() if LABELS.search(_name(key)) and not _is_weight(key)
    ]
    named = named or [(key, field) for key, field in inside.items() if _holds_ignored(tensor_of(field))]
    if named or not all(isinstance(key, int) for key in inside):
        return named
    tokens = [(key, field) for key, field in inside.items() if documents.of(tensor_of(field)) is not None]
    return tokens[1:][-1:]


def _holds_ignored(tensor: Tensor) -> bool:
    return tensor.dtype == torch.int64 and bool((tensor == IGNORED).any())


def with_labels(batch: Any, documents: Documents, keep: Callable[[Tensor], Tensor]) -> Any | None:
    """The batch in which only the labels count for which ``keep`` (asked with documents' numbers) holds.

    Labels of integers become -100, those of a MaskedTensor unspecified, weights 0. None if nothing can be ignored, or
    nothing is left that counts.
    """
    new: dict[Key, Any] = {}
    left = False
    numbers = torch.arange(documents.count)
    labels = _labels(batch, documents)
    weighed = [(key, field) for key, field in fields(batch).items() if _is_weight(key)]
    # with weights and without -100 a program may use labels as indices: only the weights are changed
    looked_up = any(documents.of(tensor_of(field)) is not None for _, field in weighed) and not any(
        _holds_ignored(tensor_of(field)) for _, field in labels
    )
    for key, field in [*labels, *weighed]:
        tensor = tensor_of(field)
        ids = documents.of(tensor)
        by_weight = looked_up and ids is not None
        if ids is None and tensor.ndim and len(tensor) == documents.count:
            ids = numbers.to(tensor.device)  # a label for each document
        if ids is None:
            continue
        kept = keep(ids).view(*ids.shape, *[1] * (tensor.ndim - ids.ndim))
        if isinstance(field, MaskedTensor):
            new[key] = masked(tensor.detach(), field.mask & kept)
            left |= bool(new[key].mask.any())
        elif _is_weight(key):
            new[key] = torch.where(kept, tensor, 0)
            left |= bool((new[key] != 0).any())
        elif not by_weight and not tensor.is_floating_point() and tensor.dtype != torch.bool:
            new[key] = torch.where(kept, tensor, IGNORED)
            left |= bool((new[key] != IGNORED).any())
    return replaced(batch, new) if left else None


def alone(batch: Any, documents: Documents, number: int) -> Any | None:
    """The batch that holds one document and nothing else; None if its tokens are not neighbours in one row."""
    places = (documents.ids == number).nonzero()
    row, first, size = int(places[0, 0]) if places.shape[1] == 2 else 0, int(places[0, -1]), len(places)
    if bool((places[:, -1] != torch.arange(first, first + size, device=places.device)).any()):
        return None
    tokens = documents.ids.shape[-1]
    new: dict[Key, Any] = {}
    for key, field in fields(batch).items():
        tensor = tensor_of(field)
        ids = documents.of(tensor)
        bounds = _BOUNDS.fullmatch(_name(key)) is not None or (key == documents.key and ids is None)
        if bounds and tensor.ndim == 1:
            new[key] = tensor.new_tensor([0, size])
        elif ids is not None:
            index: tuple[slice, ...] = (slice(first, first + size),)
            if ids.ndim == 2:
                index = (slice(row, row + 1), *index)
            new[key] = applied(field, itemgetter(index))
        elif tensor.ndim >= 2 and tensor.shape[-2:] == (tokens, tokens):  # a mask for pairs of positions
            inside = slice(first, first + size)
            of_row = tensor.ndim > 2 and len(tensor) == documents.ids.shape[0]
            rows = (slice(row, row + 1),) if of_row else ()
            new[key] = applied(field, itemgetter((*rows, ..., inside, inside)))
        elif tensor.ndim and len(tensor) == documents.count:  # a label for each document
            new[key] = applied(field, itemgetter(slice(number, number + 1)))
    return replaced(_with_longest(batch, size), new)


def _with_longest(batch: Any, size: int) -> Any:
    """The same where the length of the longest document, a number, is that of the one that is left."""
    if not isinstance(batch, Mapping):
        return batch
    longest = {
        key: size for key, value in batch.items() if isinstance(value, int) and _name(key).startswith("max_")
    }
    return {**batch, **longest} if longest else batch
