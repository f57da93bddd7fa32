"""Predictions and targets as flat plain tensors, paired by position."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maskgrad.masked_tensor.tensor import MaskedTensor, stored_of
from maskgrad.other_data import conversion_of, has_own_mask, is_sparse
from maskgrad.patterns.algebra import find
from maskgrad.patterns.boolean import BooleanPattern
from maskgrad.patterns.jagged import JaggedPattern
from maskgrad.patterns.pattern import Pattern
from maskgrad.patterns.stored import StoredPattern, ravel_multi_index
from maskgrad.semantics.jagged.frames import common_sequences
from maskgrad.semantics.stored.entries import exploded

__all__ = ["align"]

Operand = Tensor | MaskedTensor


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
    names = ["prediction", "target", *(f"argument {place}" for place in range(3, len(tensors) + 1))]
    shapes = list(map(_shape, tensors, names))
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
    for name, shape in zip(names[1:], shapes[1:], strict=True):
        if shape != positions:
            way = "shapes are not broadcast: use .expand_as, or .squeeze(1) for a column"
            if dim is not None:
                way = f"classes are expected in dimension {dim}: pass class_dim=, for example -1 for the last"
            raise ValueError(
                f"{name} must have the shape of the prediction, without its class dimension, if any; found "
                f"{tuple(shape)} and {tuple(shapes[0])}; {way}"
            )
    read = [_read(x, None if place else dim) for place, x in enumerate(tensors)]
    known, keys = _common(one.known for one in read), None
    for one in read:
        if keys is None:
            keys = one.keys
        elif one.keys is not None and not torch.equal(keys, one.keys):  # equal rows are not copied
            keys = keys[find(keys, one.keys)[0]]
    if known is not None:
        keys = known.nonzero().squeeze(1) if keys is None else keys[known[keys]]
    return tuple(_at(one, keys) for one in read)


class _Read(NamedTuple):
    """An operand: values (N,) or (N, C), and their positions."""

    values: Tensor
    known: Tensor | None = None  # (N,) mask of the specified ones; None: all
    keys: Tensor | None = None  # row-major indices, ascending, of a sparse operand; None: 0 to N - 1
    partly: Tensor | None = None  # (N,) mask of positions with some but not all classes specified


def _common(masks: Iterable[Tensor | None]) -> Tensor | None:
    """Intersection of masks, which are often the same object."""
    different = {id(mask): mask for mask in masks if mask is not None}
    return functools.reduce(torch.logical_and, different.values()) if different else None


def _at(one: _Read, keys: Tensor | None) -> Tensor:
    if keys is None or one.keys is keys:
        return one.values
    if one.keys is not None:
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
    patterns = list(map(_pattern, tensors))
    jagged = [p for p in patterns if isinstance(p, JaggedPattern)]
    if len({p.longest for p in jagged}) < 2 or (first := common_sequences(jagged, "mg.align")) is None:
        return tensors
    pairs = zip(tensors, patterns, strict=True)
    return tuple(
        [MaskedTensor(_values(x), first.moved(p.at)) if isinstance(p, JaggedPattern) else x for x, p in pairs]
    )


def _read(x: Operand, dim: int | None) -> _Read:
    if not isinstance(x, MaskedTensor):
        return _Read(_flat(x, dim))
    pattern = x._pattern
    if isinstance(pattern, BooleanPattern):
        return _as_dense(x._values, pattern.mask, dim)
    if dim is None:
        stored = stored_of(x)
        assert stored is not None
        coordinates, entries, sizes = exploded(stored)
        keys = ravel_multi_index(coordinates, sizes)
        if bool((keys[1:] <= keys[:-1]).any()):
            keys, order = keys.sort()
            entries = entries[order]
        return _Read(entries, keys=keys)
    if (
        isinstance(pattern, JaggedPattern)
        and pattern.is_canonical
        and x._values.ndim == 2
        and dim not in pattern.at
    ):
        return _Read(x._values, keys=pattern.index)
    return _as_dense(*x._dense(), dim)


def _as_dense(values: Tensor, mask: Tensor, dim: int | None) -> _Read:
    if dim is None:
        return _Read(values.reshape(-1), mask.reshape(-1))
    if mask.stride(dim) == 0 or mask.shape[dim] == 1:  # constant along the classes: all or none
        return _Read(_flat(values, dim), mask.select(dim, 0).reshape(-1) if mask.shape[dim] else None)
    some, every = mask.any(dim).reshape(-1), mask.all(dim).reshape(-1)
    return _Read(_flat(values, dim), some, partly=some & ~every)


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


def _shape(x: Any, name: str) -> torch.Size:
    """The shape of a tensor; read once, because properties of a MaskedTensor are slow calls."""
    if isinstance(x, MaskedTensor):
        pattern = x._pattern
        return pattern.shape(x._values) if isinstance(pattern, StoredPattern) else x._values.shape
    if isinstance(x, Tensor) and x.layout == torch.strided and not has_own_mask(x):
        return x.shape
    found = f"a tensor of layout {x.layout}" if isinstance(x, Tensor) and is_sparse(x) else type(x).__name__
    raise TypeError(
        f"{name} must be a strided tensor or a MaskedTensor, found {found}; use {conversion_of(x, 'x')}"
    )


def _values(x: Operand) -> Tensor:
    return x._values if isinstance(x, MaskedTensor) else x


def _pattern(x: Operand) -> Pattern | None:
    return x._pattern if isinstance(x, MaskedTensor) else None
