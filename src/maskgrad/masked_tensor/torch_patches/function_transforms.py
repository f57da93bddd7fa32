"""MaskedTensors as arguments and results of transforms of torch.func.

To these transforms a MaskedTensor is a pytree of tensors, values and those of the pattern, all of the same kind. But a
tangent of a mask would be zeros, offsets and indices have no dimension of samples, and a mask that is the same for all
samples gets none at the index that ``out_dims`` requests.
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
    """Replace ``_process_batched_inputs``: refuse to map over entries in other layouts."""
    leaves, spec = pytree.tree_flatten(args, is_leaf=is_masked)
    for x, dim in zip(leaves, pytree._broadcast_to_and_flatten(in_dims, spec) or (), strict=False):
        if dim is not None and isinstance(x, MaskedTensor) and stored_of(x) is not None:
            raise UnsupportedOperationError(
                "torch.func.vmap",
                f"offsets and indices of entries stored as {x.layout} have no dimension of samples",
                "Map over x.to_dense().",
            )
    return process(in_dims, args, func)
