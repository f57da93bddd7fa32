"""Predictions and targets as flat plain tensors, paired by position."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.kernels import select_together
from maskgrad.masked_tensor.tensor import MaskedTensor, stored_of
from maskgrad.other_data import conversion_of, has_own_mask, is_sparse
from maskgrad.patterns.algebra import find
from maskgrad.patterns.boolean import BooleanPattern
from maskgrad.patterns.eager import can_read_values
from maskgrad.patterns.jagged import JaggedPattern, same_lengths
from maskgrad.patterns.pattern import Pattern
from maskgrad.patterns.stored import StoredPattern, ravel_multi_index
from maskgrad.semantics.jagged.frames import common_sequences
from maskgrad.semantics.stored.entries import exploded

__all__ = ["align"]

Operand = Tensor | MaskedTensor


class Dense(NamedTuple):
    """A dense operand: values (N,) or (N, C), and the mask of specified ones (None: all)."""

    values: Tensor
    known: Tensor | None
    partly: Tensor | None = None
    """Positions with some but not all classes specified."""


class ListedOperand(NamedTuple):
    """A sparse operand: ascending row-major indices (n,), and values (n,) or (n, C)."""

    keys: Tensor
    values: Tensor


def align(
    prediction: Operand, target: Operand, *others: Operand, class_dim: int | None = None
) -> tuple[Tensor, ...]:
    """Flatten the arguments to the positions where all of them are specified, in row-major order.

    Flattening each separately, with ``x.compressed()``, pairs wrong entries if the masks differ.

    Args:
        prediction: values of the shape of ``target``; or scores, with one more dimension for the classes. Plain, or
            masked in any layout.
        target: plain, or masked in any layout; with scores the labels.
        others: further tensors of the shape of ``target``, such as weights.
        class_dim: dimension of the classes of scores. None: 1, as in PyTorch's losses; the last of jagged scores.

    Returns:
        A tensor for each argument, (K,), scores (K, C); K is the number of common positions. Dtypes are kept. Gradient:
        passes to these positions, exactly 0 elsewhere.

    Raises:
        TypeError: an argument is not a tensor, or is a sparse or nested tensor of PyTorch.
        ValueError: shapes do not fit, labels are not integers, or a position has scores for some of its classes only.

    Dense equivalent: ``prediction[mask], target[mask]`` with ``mask = prediction_mask & target_mask``.

    Example:
        >>> x = mg.masked(torch.tensor([1., 2., 3.]), torch.tensor([True, True, False]))
        >>> y = mg.masked(torch.tensor([4., 5., 6.]), torch.tensor([False, True, True]))
        >>> mg.align(x, y)
        (tensor([2.]), tensor([5.]))
        >>> mg.align(torch.eye(3), mg.masked(torch.tensor([0, 1, 2]), torch.tensor([True, False, True])))
        (tensor([[1., 0., 0.],
                [0., 0., 1.]]), tensor([0, 2]))
    """
    tensors = _of_one_size((prediction, target, *others))
    shapes = [_shape(x, place) for place, x in enumerate(tensors)]
    dim = _class_dim(shapes[0], shapes[1], class_dim, isinstance(_pattern(tensors[0]), JaggedPattern))
    positions = shapes[0]
    if dim is not None:
        positions = torch.Size([*positions[:dim], *positions[dim + 1 :]])
        dtype = _values(target).dtype
        if dtype.is_floating_point or dtype.is_complex:
            raise ValueError(
                f"target of shape {tuple(shapes[1])} for a prediction {tuple(shapes[0])} must be labels, which are "
                f"integers, found {dtype}; for pairs of values use equal shapes, such as prediction.squeeze(1)"
            )
    for place, shape in enumerate(shapes[1:], start=1):
        if shape != positions:
            raise ValueError(_SHAPES.format(_called(place), tuple(shape), tuple(shapes[0]), _remedy(dim)))
    return aligned(tensors, dim)


def aligned(tensors: tuple[Operand, ...], dim: int | None) -> tuple[Tensor, ...]:
    """The same for operands of matching shapes; ``dim`` is the class dimension of the first."""
    found = _same_rows(tensors, dim) or (_dense(tensors) if dim is None else None)
    if found is not None:
        return found
    read = [_read(x, dim if place == 0 else None, _called(place)) for place, x in enumerate(tensors)]
    listed = [one for one in read if isinstance(one, ListedOperand)]
    known = _common(one.known for one in read if isinstance(one, Dense))
    if listed:
        keys = listed[0].keys
        for other in listed[1:]:
            keys = keys[find(keys, other.keys)[0]]
        keys = keys if known is None else keys[known[keys]]
    elif known is None:
        return tuple(one.values for one in read)
    else:
        keys = _places(known)
    return tuple(_at(one, keys) for one in read)


def _dense(tensors: tuple[Operand, ...]) -> tuple[Tensor, ...] | None:
    """Dense operands of one shape; None if one is sparse."""
    patterns = [x._pattern for x in tensors if isinstance(x, MaskedTensor)]
    if not all(isinstance(pattern, BooleanPattern) for pattern in patterns):
        return None
    known = _common(pattern.mask for pattern in patterns)
    values = tuple(map(_values, tensors))
    return tuple(x.reshape(-1) for x in values) if known is None else select_together(values, known)


def _common(masks: Iterable[Tensor | None]) -> Tensor | None:
    """Intersection of masks, which are often the same object."""
    known: Tensor | None = None
    for mask in masks:
        if known is None:
            known = mask
        elif mask is not None and mask is not known:
            known = known & mask
    return known


def _places(known: Tensor) -> Tensor:
    """Indices where a vector is True; NumPy finds a million in 0.5 ms, PyTorch in 3 to 5."""
    if not can_read_values(known):
        return known.nonzero().squeeze(1)
    return torch.from_numpy(known.numpy().nonzero()[0])


def _at(one: Dense | ListedOperand, keys: Tensor) -> Tensor:
    if isinstance(one, ListedOperand):
        if one.keys is keys:
            return one.values
        return one.values.index_select(0, find(keys, one.keys)[1]) if keys.numel() else one.values[:0]
    if one.partly is not None and bool(one.partly[keys].any()):
        count = int(one.partly[keys].sum())
        raise ValueError(
            f"prediction has scores for some of its classes only, at {count} of {len(keys)} positions; a plain tensor "
            "cannot represent this; fill the others with a score: mg.align(scores.filled(-math.inf), labels)"
        )
    return one.values.index_select(0, keys)


def _of_one_size(tensors: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """Jagged batches of the same lengths, whatever sizes they are padded to, in the size of the first."""
    patterns = [p for p in map(_pattern, tensors) if isinstance(p, JaggedPattern)]
    if len({p.longest for p in patterns}) < 2 or (first := common_sequences(patterns, "mg.align")) is None:
        return tensors
    return tuple(
        [
            MaskedTensor(x._values, first.moved(x._pattern.at))
            if isinstance(x, MaskedTensor) and isinstance(x._pattern, JaggedPattern)
            else x
            for x in tensors
        ]
    )


def _same_rows(tensors: tuple[Operand, ...], dim: int | None) -> tuple[Tensor, ...] | None:
    """Jagged tensors of the same lengths are aligned already."""
    first = _pattern(tensors[0])
    if not isinstance(first, JaggedPattern) or (dim is not None and _values(tensors[0]).ndim != 2):
        return None
    for own in map(_pattern, tensors):
        if not isinstance(own, JaggedPattern) or not own.is_canonical or own.is_flat != first.is_flat:
            return None
        if own is not first and (own.frame.shape != first.frame.shape or not same_lengths(first, own)):
            return None
    rest = [_values(x).reshape(-1) for x in tensors[1:]]
    values = _values(tensors[0])
    return (values if dim is not None else values.reshape(-1), *rest)


def _read(x: Operand, dim: int | None, name: str) -> Dense | ListedOperand:
    if not isinstance(x, MaskedTensor):
        return Dense(_flat(x, dim), None)
    pattern = x._pattern
    if isinstance(pattern, BooleanPattern):
        return _as_dense(x._values, pattern.mask, dim)
    if dim is None:
        stored = stored_of(x)
        assert stored is not None
        coordinates, entries, sizes = exploded(stored)
        keys = ravel_multi_index(coordinates, sizes)
        if bool((keys[1:] <= keys[:-1]).any()):
            order = torch.argsort(keys)
            return ListedOperand(keys[order], entries[order])
        return ListedOperand(keys, entries)
    if not isinstance(pattern, JaggedPattern):
        raise TypeError(
            f"{name} has scores stored as {x.layout}, which list classes separately; use "
            "mg.align(scores.to_dense(), labels)"
        )
    if pattern.is_canonical and x._values.ndim == 2 and dim not in pattern.at:
        return ListedOperand(pattern.index, x._values)
    return _as_dense(*x._dense(), dim)


def _as_dense(values: Tensor, mask: Tensor, dim: int | None) -> Dense:
    if dim is None:
        return Dense(values.reshape(-1), mask.reshape(-1))
    if mask.stride(dim) == 0 or mask.shape[dim] == 1:  # constant along the classes: all or none
        return Dense(_flat(values, dim), mask.select(dim, 0).reshape(-1) if mask.shape[dim] else None)
    some, every = mask.any(dim).reshape(-1), mask.all(dim).reshape(-1)
    return Dense(_flat(values, dim), some, some & ~every)


def _flat(values: Tensor, dim: int | None) -> Tensor:
    if dim is None:
        return values.reshape(-1)
    moved = values.movedim(dim, -1)
    return moved.reshape(math.prod(moved.shape[:-1]), moved.shape[-1])


def _class_dim(
    prediction: torch.Size, target: torch.Size, class_dim: int | None, is_jagged: bool
) -> int | None:
    """The class dimension, counted from the front; None if there is none."""
    ndim = len(prediction)
    if ndim != len(target) + 1:
        if class_dim is not None and ndim == len(target):
            raise ValueError(
                f"class_dim is for scores, which have one dimension more than their labels, found {tuple(prediction)} "
                f"and {tuple(target)}; omit it"
            )
        return None
    if class_dim is None:
        return ndim - 1 if is_jagged else min(1, ndim - 1)
    if not -ndim <= class_dim < ndim:
        raise ValueError(
            f"class_dim must be a dimension of scores {tuple(prediction)}, found {class_dim}; use 1, or -1 for the last"
        )
    return class_dim % ndim


_SHAPES = "{} must have the shape of the prediction, without its class dimension, if any; found {} and {}; {}"


def _remedy(dim: int | None) -> str:
    if dim is None:
        return "shapes are not broadcast: use .expand_as, or .squeeze(1) for a column"
    return f"classes are expected in dimension {dim}: pass class_dim=, for example -1 for the last"


def _shape(x: Any, place: int) -> torch.Size:
    """The shape of a tensor; read once, because properties of a MaskedTensor are slow calls."""
    if isinstance(x, MaskedTensor):
        pattern = x._pattern
        return pattern.shape(x._values) if isinstance(pattern, StoredPattern) else x._values.shape
    if not isinstance(x, Tensor):
        way = f"use {conversion_of(x, 'x')}"
        raise TypeError(
            f"{_called(place)} must be a tensor or a MaskedTensor, found {type(x).__name__}; {way}"
        )
    if has_own_mask(x) or x.layout != torch.strided:
        layout = "nested" if x.is_nested else f"of layout {x.layout}" if is_sparse(x) else "of torch.masked"
        raise TypeError(
            f"{_called(place)} is a tensor of PyTorch that is {layout}, whose missing entries may be masked or zero; "
            f"use {conversion_of(x, 'x')}"
        )
    return x.shape


def _called(place: int) -> str:
    return ("prediction", "target")[place] if place < 2 else f"argument {place + 1}"


def _values(x: Operand) -> Tensor:
    return x._values if isinstance(x, MaskedTensor) else x


def _pattern(x: Operand) -> Pattern | None:
    return x._pattern if isinstance(x, MaskedTensor) else None
