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
from maskgrad.errors import ExaminationError
from maskgrad.masked_tensor import MaskedTensor, masked

__all__ = [
    "LABELS", "WEIGHT", "Documents", "alone", "content", "documents_of", "is_structure", "positions_of",
    "shapes_of_positions", "with_labels",
]  # fmt: skip

LABELS = re.compile(r"label|target|tags?$|gold|^y$", re.I)
#: the weight of each position of a model's outputs, next to its arguments
WEIGHT = "weight of the doctor"
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
        forms = (ids, ids.squeeze(0), ids.unsqueeze(0))
        return next((form for form in forms if tensor.shape[: form.ndim] == form.shape), None)


def _restarted(tensor: Tensor, _: set[tuple[int, ...]]) -> Tensor | None:
    starts = tensor == 0
    follows = (tensor[..., 1:] == tensor[..., :-1] + 1) | starts[..., 1:]
    return _counted(starts.cumsum(-1)) if bool(starts[..., 0].all() and follows.all()) else None


def _bounded(tensor: Tensor, tokens: set[tuple[int, ...]]) -> Tensor | None:
    if tensor.ndim != 1 or len(tensor) < 2 or int(tensor[0]) != 0 or bool((tensor.diff() < 0).any()):
        return None
    ids = torch.repeat_interleave(torch.arange(len(tensor) - 1, device=tensor.device), tensor.diff())
    return next((form for form in (ids, ids[None]) if tuple(form.shape) in tokens), None)


#: how documents are given: how that is read, and the names under which programs do so
_READERS: dict[str, tuple[Callable[..., Tensor | None], re.Pattern[str]]] = {
    "ids": (lambda x, _: _counted(x), re.compile("seq_idx|(document|doc|segment|sequence)_ids|document_id")),
    "bounds": (_bounded, re.compile("cu_(seq|doc).*")),
    "restarting positions": (_restarted, re.compile("position_ids|input_pos|positions")),
}


def documents_of(batch: Any, given: Any = None) -> Documents | None:
    """The documents of a batch, as they are given or recognised by the names of its keys; None if there are none."""
    inside = fields(batch)

    def read(key: Key, *forms: str) -> Documents | None:
        tensor = tensor_of(inside[key])
        others = [tuple(tensor_of(held).shape) for other, held in inside.items() if other != key]
        tokens = {shape[:axes] for shape in others for axes in (1, 2)}
        for form in forms if _are_numbers(tensor) and tensor.ndim in (1, 2) else ():
            ids = _READERS[form][0](tensor, tokens)
            if ids is not None:
                return Documents(ids, f"the {form} {key!r}", key)
        return None

    if given is None:
        masks = [tensor_of(held) for key, held in inside.items() if "attention_mask" in _name(key)]
        padded = not all(bool(mask.bool().all()) for mask in masks)
        for form, (reader, names) in _READERS.items():
            # in a padded batch positions that start again are no sign of documents
            for key in inside if reader is not _restarted or not padded else ():
                found = read(key, form) if names.fullmatch(_name(key)) else None
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
    if ids is not None:
        return _given(key, tensor_of(inside[key]), ids, inside)
    found = read(key, "bounds", "restarting positions", "ids")
    if found is None:
        raise ExaminationError(
            f"documents={key!r}: it has neither an id for each token, positions that restart at 0, nor bounds "
            "from 0 to the number of tokens; pass documents={'input_ids': document_of_each_token}"
        )
    return found


def _given(key: Key, tensor: Tensor, ids: Any, inside: Mapping[Key, Any]) -> Documents:
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
    others = {name: tensor_of(held) for name, held in inside.items() if held.shape == ids.shape}
    numbers = {name: _counted(held) for name, held in others.items() if _are_numbers(held)}
    same = (name for name, held in numbers.items() if torch.equal(held, counted))
    return Documents(counted, "given", next(same, None))


def _name(key: Key) -> str:
    return str(key).rpartition(".")[2].lower()


def is_structure(key: Key) -> bool:
    """Whether a key holds the structure of a pack instead of tokens."""
    name = _name(key)
    structured = any(names.fullmatch(name) for _, names in _READERS.values())
    return structured or name.startswith("max_") or "mask" in name


def _are_numbers(tensor: Tensor) -> bool:
    plain = tensor.layout is torch.strided and tensor.numel() > 0
    return plain and tensor.dtype in (torch.int64, torch.int32)


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
    """The shapes (samples, positions) that a batch may have, those of most tensors first, and of integers."""
    # floats of two dimensions only where nothing else is: they may be features
    tensors = [tensor for field in fields(batch).values() if (tensor := tensor_of(field)).ndim >= 2]
    ids = [tensor for tensor in tensors if tensor.ndim == 2 and _are_numbers(tensor)]
    surely = [tensor for tensor in tensors if tensor.ndim > 2 and tensor.is_floating_point()]
    others = surely or ([] if ids else tensors)
    groups = [[tuple(each.shape[:2]) for each in group] for group in (ids, others)]
    found = [shape for group in groups for shape in sorted(group, key=group.count, reverse=True)]
    return list(dict.fromkeys(shape for shape in found if shape[1] > 1))


def positions_of(batch: Any, shapes: Sequence[tuple[int, ...]] = ()) -> Documents | None:
    """The number of each position, in the shape (samples, positions) that is given, or that most tensors begin with."""
    weights = [tuple(held.shape) for key, held in fields(batch).items() if key == WEIGHT and held.ndim == 2]
    shapes = weights or shapes or shapes_of_positions(batch)
    if not shapes:
        return None
    rows, columns = max(dict.fromkeys(shapes), key=list(shapes).count)
    return Documents(torch.arange(columns).expand(rows, columns), "positions") if columns > 1 else None


def content(batch: Any, documents: Documents) -> dict[Key, Tensor]:
    """The document of each value, by key, of tensors that hold something for each token and are no label."""
    labels, tokens = _labels(batch, documents), _tokens(batch, documents)
    found = {key: documents.of(tensor_of(held)) for key, held in tokens.items() if not _is_weight(key)}
    return {key: ids for key, ids in found.items() if ids is not None and key not in labels}


def _tokens(batch: Any, documents: Documents) -> dict[Key, Any]:
    inside = fields(batch)
    return {key: inside[key] for key in inside if not is_structure(key) and key != documents.key}


def _is_weight(key: Key) -> bool:
    return any(word in _name(key) for word in _WEIGHTS)


def _labels(batch: Any, documents: Documents) -> dict[Key, Any]:
    """What the loss is asked for, by token or by document; in a batch without names the last tensor by token."""
    inside = _tokens(batch, documents)
    named = {key: held for key, held in inside.items() if LABELS.search(_name(key)) and not _is_weight(key)}
    named = named or {key: held for key, held in inside.items() if _holds_ignored(tensor_of(held))}
    if named or not all(isinstance(key, int) for key in inside):
        return named
    tokens = [key for key, held in inside.items() if documents.of(tensor_of(held)) is not None]
    return {key: inside[key] for key in tokens[1:][-1:]}


def _holds_ignored(tensor: Tensor) -> bool:
    return tensor.dtype == torch.int64 and bool((tensor == IGNORED).any())


def with_labels(batch: Any, documents: Documents, keep: Callable[[Tensor], Tensor]) -> Any | None:
    """The batch in which only the labels of documents count for which ``keep`` holds; None if none are left.

    Labels of integers become -100, those of a MaskedTensor unspecified, weights 0.
    """
    new: dict[Key, Any] = {}
    left = False
    labels = _labels(batch, documents)
    weighed = {key: held for key, held in fields(batch).items() if _is_weight(key)}
    # with weights and without -100 a program may use labels as indices: only the weights are changed
    by_token = any(documents.of(tensor_of(held)) is not None for held in weighed.values())
    looked_up = by_token and not any(_holds_ignored(tensor_of(held)) for held in labels.values())
    for key, held in {**labels, **weighed}.items():
        tensor = tensor_of(held)
        ids = documents.of(tensor)
        by_weight = looked_up and ids is not None
        if ids is None and tensor.ndim and len(tensor) == documents.count:
            ids = torch.arange(documents.count, device=tensor.device)  # a label for each document
        if ids is None:
            continue
        kept = keep(ids).view(*ids.shape, *[1] * (tensor.ndim - ids.ndim))
        if isinstance(held, MaskedTensor):
            new[key] = masked(tensor.detach(), held.mask & kept)
            left |= bool(new[key].mask.any())
            continue
        integers = not tensor.is_floating_point() and tensor.dtype != torch.bool
        if _is_weight(key) or (integers and not by_weight):
            ignored = 0 if _is_weight(key) else IGNORED
            new[key] = torch.where(kept, tensor, ignored)
            left |= bool((new[key] != ignored).any())
    return replaced(batch, new) if left else None


def alone(batch: Any, documents: Documents, number: int) -> Any | None:
    """The batch that holds one document and nothing else; None if its tokens are not neighbours in one row."""
    places = (documents.ids == number).nonzero()
    row, first, size = int(places[0, 0]) if places.shape[1] == 2 else 0, int(places[0, -1]), len(places)
    if bool((places[:, -1] != torch.arange(first, first + size, device=places.device)).any()):
        return None
    tokens, inside, one_row = documents.ids.shape[-1], slice(first, first + size), slice(row, row + 1)
    new: dict[Key, Any] = {}
    for key, held in fields(batch).items():
        tensor = tensor_of(held)
        ids = documents.of(tensor)
        bounds = _READERS["bounds"][1].fullmatch(_name(key)) or (key == documents.key and ids is None)
        if bounds and tensor.ndim == 1:
            new[key] = tensor.new_tensor([0, size])
        elif ids is not None:
            new[key] = applied(held, itemgetter((one_row, inside) if ids.ndim == 2 else (inside,)))
        elif tensor.ndim >= 2 and tensor.shape[-2:] == (tokens, tokens):  # a mask for pairs of positions
            of_row = tensor.ndim > 2 and len(tensor) == documents.ids.shape[0]
            new[key] = applied(held, itemgetter((*([one_row] if of_row else []), ..., inside, inside)))
        elif tensor.ndim and len(tensor) == documents.count:  # a label for each document
            new[key] = applied(held, itemgetter(slice(number, number + 1)))
    if isinstance(batch, Mapping):  # the length of the longest document is that of the one that is left
        numbers = [key for key, held in batch.items() if isinstance(held, int)]
        longest = [key for key in numbers if _name(key).startswith("max_")]
        batch = {**batch, **dict.fromkeys(longest, size)} if longest else batch
    return replaced(batch, new)
