"""MaskedTensors as arguments and results of transforms of torch.func.

To these transforms a MaskedTensor is a pytree of tensors, values and those of the pattern, all of the same kind.
In three cases they must differ:

- ``jvp`` (and ``jacfwd``) gives every tensor a tangent, also the mask, as zeros: nothing would be specified.
  A tangent has the pattern of its result.
- ``vmap`` removes a dimension of each tensor of an argument, but offsets and indices lack those of the features.
- ``vmap`` adds a dimension to every tensor of a result, also to a mask that is the same for all samples, but not
  at the index that ``out_dims`` requests; and the sizes of a sparse layout would lack that dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries, stored_of
from maskgrad.masked_tensor.torch_patches.pytrees import holds_masked, is_masked
from maskgrad.mode import TRACED, mode
from maskgrad.patterns import JaggedPattern

__all__ = ["jvp_with_patterns", "process_batched_inputs", "unwrap_batched"]


def jvp_with_patterns(jvp: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Replace ``_jvp_with_argnums``: give tangents the pattern of their results."""
    found = jvp(*args, **kwargs)
    result, tangent, *rest = found
    if not holds_masked(result):
        return found
    return (result, pytree.tree_map(_tangent_of, result, tangent, is_leaf=is_masked), *rest)


def _tangent_of(result: Any, tangent: Any) -> Any:
    return MaskedTensor(tangent._values, result._pattern) if isinstance(result, MaskedTensor) else tangent


def unwrap_batched(
    unwrap: Callable[..., Any], outputs: Any, out_dims: Any, level: int, batch_size: int, func: Any
) -> Any:
    """Replace ``_unwrap_batched``: give masks of results the dimension of samples, too."""
    if mode() not in TRACED and holds_masked(outputs):
        outputs = pytree.tree_map(
            lambda leaf: _in_the_batch(leaf, level, batch_size) if is_masked(leaf) else leaf,
            outputs,
            is_leaf=is_masked,
        )
    return unwrap(outputs, out_dims, level, batch_size, func)


def _in_the_batch(x: MaskedTensor, level: int, batch_size: int) -> MaskedTensor:
    """Return values and mask, both with a dimension of samples."""
    from torch._C import _functorch as functorch

    def is_batched(part: Tensor) -> bool:
        return bool(functorch.is_batchedtensor(part)) and functorch.maybe_get_level(part) == level

    def batched(part: Tensor) -> Tensor:
        if is_batched(part):
            return part
        found: Tensor = functorch._add_batch_dim(part.expand(batch_size, *part.shape), 0, level)
        return found

    stored = stored_of(x)
    if stored is None:
        return of_entries(batched(x._values), batched(x._pattern.mask))
    if any(map(is_batched, (stored.values, *stored.pattern.tensors()))):
        raise UnsupportedOperationError(
            "torch.func.vmap",
            f"the function returns entries stored as {x.layout}, whose sizes have no dimension of samples; return "
            "x.to_dense(), or bare values",
        )
    return x


def process_batched_inputs(process: Callable[..., Any], in_dims: Any, args: Any, func: Any) -> Any:
    """Replace ``_process_batched_inputs``: map over features of jagged arguments, which all have the same sequences."""
    leaves, spec = pytree.tree_flatten(args, is_leaf=is_masked)
    dims = pytree._broadcast_to_and_flatten(in_dims, spec)
    if dims is None or not any(map(_is_mapped, leaves, dims)):
        return process(in_dims, args, func)
    leaves = [
        _with_samples_last(x, dim) if _is_mapped(x, dim) else x for x, dim in zip(leaves, dims, strict=True)
    ]
    # PyTorch handles the values only, and arguments of other types
    plain = [x._values if _is_stored(x) else x for x in leaves]
    dims = [-1 if _is_mapped(x, dim) else dim for x, dim in zip(leaves, dims, strict=True)]
    size, dims, _, _ = process(pytree.tree_unflatten(dims, spec), pytree.tree_unflatten(plain, spec), func)
    every: list[Any] = []
    rest = iter(dims)
    for x in leaves:
        number = len(pytree.tree_leaves(x))
        every += (
            [next(rest), *[None] * (number - 1)] if _is_stored(x) else [next(rest) for _ in range(number)]
        )
    return size, every, *pytree.tree_flatten(pytree.tree_unflatten(leaves, spec))


def _is_stored(x: object) -> bool:
    return isinstance(x, MaskedTensor) and stored_of(x) is not None


def _is_mapped(x: object, dim: int | None) -> bool:
    return dim is not None and _is_stored(x)


def _with_samples_last(x: MaskedTensor, dim: int) -> MaskedTensor:
    pattern = x._pattern
    rank = len(x.shape)
    if not -rank <= dim < rank:
        raise ValueError(f"in_dims: the input has {rank} dimensions, found in_dim={dim}")
    if not isinstance(pattern, JaggedPattern) or dim % rank in pattern.at:
        raise UnsupportedOperationError(
            "torch.func.vmap",
            f"samples along dimension {dim} of entries stored as {x.layout} differ in their patterns; map over "
            "x.to_dense()",
        )
    moved: MaskedTensor = x.movedim(dim, -1)
    return moved
