"""What torch.func has to be told of MaskedTensors that a function returns.

To its transforms a MaskedTensor is a tree of tensors, the values and those of the pattern, which do not differ in kind.
In two places they have to:

- ``jvp``, and ``jacfwd`` above it, give every tensor a tangent, and a mask one of zeros: nothing would be specified.
  A tangent has the pattern of the result that it belongs to.
- ``vmap`` gives every tensor a dimension of its own, also a mask that is the same for all samples, but not at the place
  that ``out_dims`` asks for; and the sizes that a sparse layout remembers would lack that dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.tensor import MaskedTensor, of_entries, stored_of

__all__ = ["install_batches", "install_tangents"]


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
