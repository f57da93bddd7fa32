"""What torch.func has to be told of MaskedTensors that a function returns.

To its transforms a MaskedTensor is a tree of tensors, the values and those of the pattern, which do not differ in kind.
In three places they have to:

- ``jvp``, and ``jacfwd`` above it, give every tensor a tangent, and a mask one of zeros: nothing would be specified.
  A tangent has the pattern of the result that it belongs to.
- ``vmap`` takes a dimension of each tensor of an argument, though offsets and indices lack those of the features.
- ``vmap`` gives every tensor of a result a dimension of its own, also a mask that is the same for all samples, but not
  at the place that ``out_dims`` asks for; and the sizes that a sparse layout remembers would lack that dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries, stored_of
from maskgrad.patterns import JaggedPattern

__all__ = ["install_arguments", "install_batches", "install_tangents"]


def _is_masked(x: object) -> bool:
    return isinstance(x, MaskedTensor)


def _holds_masked(tree: Any) -> bool:
    return any(isinstance(leaf, MaskedTensor) for leaf in pytree.tree_leaves(tree, _is_masked))


def _with_patterns(jvp: Callable[..., Any]) -> Callable[..., Any]:
    def jvp_with_patterns(*args: Any, **kwargs: Any) -> Any:
        found = jvp(*args, **kwargs)
        result, tangent, *rest = found
        if not _holds_masked(result):
            return found
        return (result, pytree.tree_map(_tangent_of, result, tangent, is_leaf=_is_masked), *rest)

    jvp_with_patterns.__wrapped__ = jvp  # type: ignore[attr-defined]
    return jvp_with_patterns


def _tangent_of(result: Any, tangent: Any) -> Any:
    return MaskedTensor(tangent._values, result._pattern) if isinstance(result, MaskedTensor) else tangent


def _with_masks_in_the_batch(unwrap: Callable[..., Any]) -> Callable[..., Any]:
    def unwrap_batched(outputs: Any, out_dims: Any, level: int, batch_size: int, func: Any) -> Any:
        if not torch.compiler.is_compiling() and _holds_masked(outputs):
            outputs = pytree.tree_map(
                lambda leaf: _in_the_batch(leaf, level, batch_size) if _is_masked(leaf) else leaf,
                outputs,
                is_leaf=_is_masked,
            )
        return unwrap(outputs, out_dims, level, batch_size, func)

    unwrap_batched.__wrapped__ = unwrap  # type: ignore[attr-defined]
    return unwrap_batched


def _in_the_batch(x: MaskedTensor, level: int, batch_size: int) -> MaskedTensor:
    """Values and mask, both with a dimension of samples."""
    stored = stored_of(x)
    if stored is None:
        return of_entries(
            _batched(x._values, level, batch_size), _batched(x._pattern.mask, level, batch_size)
        )
    if any(_is_batched(part, level) for part in (stored.values, *stored.pattern.tensors())):
        raise UnsupportedOperationError(
            "torch.func.vmap",
            f"the function returns entries stored as {x.layout}, whose sizes have no dimension of samples; return "
            "x.to_dense(), or bare values",
        )
    return x


def _with_features_of_samples(process: Callable[..., Any]) -> Callable[..., Any]:
    def process_batched_inputs(in_dims: Any, args: Any, func: Any) -> Any:
        leaves, spec = pytree.tree_flatten(args, is_leaf=_is_masked)
        dims = pytree._broadcast_to_and_flatten(in_dims, spec)
        if dims is None or not any(
            _is_stored(x) and dim is not None for x, dim in zip(leaves, dims, strict=True)
        ):
            return process(in_dims, args, func)
        leaves = [
            x if not _is_stored(x) or dim is None else _with_samples_last(x, dim)
            for x, dim in zip(leaves, dims, strict=True)
        ]
        # PyTorch looks at the values alone, and at arguments of other kinds
        plain = [x._values if _is_stored(x) else x for x in leaves]
        dims = [-1 if _is_stored(x) and dim is not None else dim for x, dim in zip(leaves, dims, strict=True)]
        size, dims, _, _ = process(
            pytree.tree_unflatten(dims, spec), pytree.tree_unflatten(plain, spec), func
        )
        every: list[Any] = []
        rest = iter(dims)
        for x in leaves:
            number = len(pytree.tree_leaves(x))
            every += (
                [next(rest), *[None] * (number - 1)] if _is_stored(x) else [next(rest) for _ in range(number)]
            )
        return size, every, *pytree.tree_flatten(pytree.tree_unflatten(leaves, spec))

    process_batched_inputs.__wrapped__ = process  # type: ignore[attr-defined]
    return process_batched_inputs


def _is_stored(x: object) -> bool:
    return isinstance(x, MaskedTensor) and stored_of(x) is not None


def _with_samples_last(x: MaskedTensor, dim: int) -> MaskedTensor:
    """The samples are features of a jagged tensor: each has the same sequences."""
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


def _is_batched(x: Tensor, level: int) -> bool:
    from torch._C import _functorch as functorch

    return bool(functorch.is_batchedtensor(x)) and functorch.maybe_get_level(x) == level


def _batched(x: Tensor, level: int, batch_size: int) -> Tensor:
    if _is_batched(x, level):
        return x
    from torch._C import _functorch as functorch

    found: Tensor = functorch._add_batch_dim(x.expand(batch_size, *x.shape), 0, level)
    return found


def install_tangents() -> None:
    """Let jvp and jacfwd give tangents the pattern of their results."""
    from torch._functorch import eager_transforms

    eager_transforms._jvp_with_argnums = _with_patterns(eager_transforms._jvp_with_argnums)


def install_batches() -> None:
    """Let vmap give masks the samples' dimension too."""
    from torch._functorch import vmap

    vmap._unwrap_batched = _with_masks_in_the_batch(vmap._unwrap_batched)


def install_arguments() -> None:
    """Let vmap map over the features of jagged arguments."""
    from torch._functorch import vmap

    vmap._process_batched_inputs = _with_features_of_samples(vmap._process_batched_inputs)
