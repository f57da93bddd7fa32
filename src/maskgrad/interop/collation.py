"""Batches of samples with sequences of different lengths, for a ``DataLoader``."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from numbers import Number
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from maskgrad.masked_tensor.numpy_memory import tensor_of
from maskgrad.masked_tensor.sequences import check_layout, from_sequences
from maskgrad.masked_tensor.storage import to_dense
from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["collate_jagged"]

FUNCTION = "mg.interop.collate_jagged"

#: The name of a field of a mapping, or its index in a tuple; None for a sample that is not a collection.
Name = str | int | None


def collate_jagged(
    samples: list[Any],
    *,
    sequences: Collection[str | int] | None = None,
    stack: Collection[str | int] = (),
    layout: torch.layout = torch.jagged,
) -> Any:
    """Collate samples and concatenate their sequences: a ``collate_fn`` for ``torch.utils.data.DataLoader``.

    Whether a field is a sequence does not depend on the lengths in a batch, so all batches have the same types.

    Args:
        samples: tensors, arrays of numpy, lists of numbers, or mappings, tuples and lists of such fields,
            nested or not.
        sequences: the fields that are sequences, by their key in a mapping or their index in a tuple. None: every
            tensor, array and list of numbers of one dimension or more is one, along its first dimension.
        stack: fields that look like sequences but are not, such as images of one shape.
        layout: ``torch.jagged``, or ``torch.strided`` for padding under a Boolean mask.

    Returns:
        The structure of a sample; each sequence is a MaskedTensor ``(B, T, *features)``, T the longest length in the
        batch (fields of the same lengths share one pattern), and ``torch.utils.data.default_collate`` of the rest.
        Lists of Python numbers become int64, float32 or Boolean tensors; int64 if all lists of a batch are empty.
        Gradient: reaches tensors in the samples.

    Raises:
        TypeError: dtypes in a field differ, or a field named as a sequence is not one.
        ValueError: features in a field differ, samples have different fields, a field is named twice, or the layout is
            unknown.
        KeyError: a named field is in no sample.

    Dense equivalent: ``torch.nn.utils.rnn.pad_sequence`` for each sequence, with its lengths.

    Example:
        >>> import functools
        >>> data = [{"ids": [5, 6, 7], "label": 0}, {"ids": [8], "label": 1}]
        >>> batch = next(iter(torch.utils.data.DataLoader(data, 2, collate_fn=mg.interop.collate_jagged)))
        >>> batch["ids"], batch["label"]
        (masked([[ 5,  6,  7],
                [ 8, --, --]], layout=torch.jagged), tensor([0, 1]))
        >>> named = functools.partial(mg.interop.collate_jagged, sequences=("ids",))
        >>> torch.utils.data.DataLoader(data, 2, collate_fn=named).collate_fn is named
        True

    Source: https://docs.pytorch.org/docs/stable/data.html#dataloader-collate-fn
    """
    check_layout(layout)
    if not samples:
        raise ValueError(f"{FUNCTION}: samples must not be empty; a batch has one sample or more")
    chosen = {"sequences": sequences or (), "stack": stack}
    for argument, names in chosen.items():
        if isinstance(names, str):
            raise TypeError(
                f"{FUNCTION}: {argument} must be a collection of names, found the string {names!r}; use ({names!r},)"
            )
    both = set(sequences or ()) & set(stack)
    if both:
        raise ValueError(
            f"{FUNCTION}: a field must not be in both sequences and stack, found {sorted(map(str, both))}"
        )
    fields = _Fields(None if sequences is None else frozenset(sequences), frozenset(stack), layout)
    batch = fields.collate(samples, None)
    absent = (set(sequences or ()) | set(stack)) - fields.seen
    if absent:
        raise KeyError(
            f"{FUNCTION}: no field is named {', '.join(sorted(map(repr, absent)))}; the samples have "
            f"{', '.join(sorted(map(repr, fields.seen))) or 'none'}"
        )
    return batch


class _Fields:
    """State of the collation of one batch: options, fields and patterns."""

    def __init__(
        self, sequences: frozenset[str | int] | None, stack: frozenset[str | int], layout: torch.layout
    ) -> None:
        self.sequences, self.stack, self.layout = sequences, stack, layout
        self.seen: set[str | int] = set()
        self.patterns: dict[Any, Any] = {}

    def collate(self, parts: list[Any], name: Name) -> Any:
        first = parts[0]
        if name is not None:
            self.seen.add(name)
        is_named = self.sequences is not None and name in self.sequences
        if name in self.stack:
            return default_collate([torch.as_tensor(p) if _is_numbers(p) else p for p in parts])
        if is_named or (self.sequences is None and all(map(_is_sequence, parts))):
            return self.batch(parts, name)
        if isinstance(first, Mapping):
            for key in first:
                if any(not isinstance(p, Mapping) or key not in p for p in parts):
                    raise ValueError(
                        f"{FUNCTION}: {_called(name)} must have the field {key!r} in each sample"
                    )
            return {key: self.collate([p[key] for p in parts], key) for key in first}
        if isinstance(first, tuple) or (isinstance(first, list) and not _is_numbers(first)):
            if any(not isinstance(p, (tuple, list)) or len(p) != len(first) for p in parts):
                raise ValueError(f"{FUNCTION}: {_called(name)} must have {len(first)} parts in each sample")
            found = [self.collate([p[i] for p in parts], i) for i in range(len(first))]
            if not isinstance(first, tuple):
                return found
            return type(first)(*found) if hasattr(first, "_fields") else tuple(found)
        return default_collate(parts)

    def batch(self, parts: list[Any], name: Name) -> MaskedTensor:
        """Concatenate sequences."""
        for i, part in enumerate(parts):
            if not _is_sequence(part):
                raise TypeError(
                    f"{FUNCTION}: {_called(name)} must be a tensor of one dimension or more, or a list of numbers, "
                    f"found {type(part).__name__} in sample {i}; remove it from sequences="
                )
        try:
            x = from_sequences(_tensors(parts), layout=torch.jagged)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"{FUNCTION}: {_called(name)}: {error}; list fields that are not sequences in stack="
            ) from None
        key = (str(x.device), *[len(part) for part in parts])
        x = MaskedTensor(x._values, self.patterns.setdefault(key, x._pattern))
        return x if self.layout == torch.jagged else to_dense(x)


def _called(name: Name) -> str:
    return "a sample" if name is None else f"field {name!r}"


def _is_numbers(part: Any) -> bool:
    """Return whether something is a list of numbers, or of such lists, judged by its first entry."""
    return isinstance(part, list) and (not part or isinstance(part[0], Number) or _is_numbers(part[0]))


def _is_sequence(part: Any) -> bool:
    if isinstance(part, Tensor):
        return part.layout == torch.strided and not part.is_nested and part.ndim > 0
    return _is_numbers(part) or (type(part).__module__ == "numpy" and getattr(part, "ndim", 0) > 0)


def _tensors(parts: list[Any]) -> list[Tensor]:
    """Convert all to tensors; lists to one dtype, independent of empty ones."""
    tensors = [torch.tensor(p) if isinstance(p, list) else p for p in parts]
    tensors = [t if isinstance(t, Tensor) else tensor_of(t) for t in tensors]
    if not isinstance(parts[0], list):
        return tensors
    telling = [t for t in tensors if t.numel()]
    dtype = functools.reduce(torch.promote_types, [t.dtype for t in telling]) if telling else torch.int64
    features = telling[0].shape[1:] if telling else ()
    return [t.to(dtype) if t.numel() else t.new_empty(0, *features, dtype=dtype) for t in tensors]
