"""Tensors: those among the arguments and results of operations, their memory, and whether two are equal.

``torch.utils._pytree``, which knows more than lists, tuples and dicts, took a third of the time of a small step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "any_key",
    "dense",
    "differing",
    "expanded",
    "flat",
    "key_of",
    "mapped",
    "on",
    "same",
    "tensors_in",
]

#: what is often among arguments, and needs no question
_NUMBERS = {int, float, bool, type(None)}


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors among arguments or results, in lists, tuples and dicts."""
    if isinstance(tree, Tensor):
        return [tree]
    found: list[Tensor] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[Tensor]) -> None:
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (tuple, list)):
        return
    for member in tree:
        if type(member) in _NUMBERS:
            continue
        if isinstance(member, Tensor):
            found.append(member)
        elif isinstance(member, (tuple, list, dict)):
            _collect(member, found)


def mapped(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Arguments with other tensors; see :func:`tensors_in`."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)([mapped(function, member) for member in tree])
    if isinstance(tree, dict):
        return {key: mapped(function, member) for key, member in tree.items()}
    return tree


def flat(tree: Any) -> list[Any]:
    """All that lists, tuples and dicts hold, tensors or not."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if not isinstance(tree, (tuple, list)):
        return [tree]
    return [leaf for member in tree for leaf in flat(member)]


def key_of(tensor: Tensor) -> int | None:
    """What is the same for all views of one memory; None for what has several memories, such as sparse tensors."""
    if tensor.layout is not torch.strided:
        return None
    key: int = tensor.untyped_storage()._cdata
    return key


def any_key(tensor: Tensor) -> int:
    """The same for all views of one memory; of the tensor itself where it has several."""
    key = key_of(tensor)
    return -id(tensor) if key is None else key


def on(storage: torch.UntypedStorage, like: Tensor) -> Tensor:
    """A tensor of the geometry of ``like`` on other memory."""
    made = torch.empty(0, dtype=like.dtype, device=like.device)
    made.set_(storage, like.storage_offset(), like.shape, like.stride())
    if like.is_conj():
        made = torch._conj(made)
    return torch._neg_view(made) if like.is_neg() else made


def expanded(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """A mask of leading dimensions in the whole shape."""
    return mask.reshape(*mask.shape, *(1,) * (len(shape) - mask.ndim)).expand(shape)


def dense(tensor: Tensor) -> Tensor:
    """The tensor without a sparse layout."""
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal entry for entry; NaN equals NaN."""
    if a.layout is torch.jagged:
        return same(a.values(), b.values())
    if a.layout is torch.sparse_coo:
        a, b = a.coalesce(), b.coalesce()
        return same(a._indices(), b._indices()) and same(a._values(), b._values())
    a, b = dense(a), dense(b)
    if a.shape != b.shape:
        return False
    if torch.equal(a, b):
        return True
    return not _has_no_nan(a) and not bool(differing(a, b).any())


def differing(a: Tensor, b: Tensor) -> Tensor:
    """Boolean tensor: True where entries differ; NaN equals NaN."""
    if a.layout is torch.jagged:
        a, b = a.values(), b.values()
    a, b = dense(a), dense(b)
    unequal = a != b
    if not _has_no_nan(a):
        unequal &= ~(a.isnan() & b.isnan())
    return unequal


def _has_no_nan(tensor: Tensor) -> bool:
    """Whether there is surely no NaN: a sum that is a number is one pass, a look at each entry is three."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return True
    if tensor.element_size() == 1:
        return False
    total = tensor.sum().item()
    return bool(total == total)
