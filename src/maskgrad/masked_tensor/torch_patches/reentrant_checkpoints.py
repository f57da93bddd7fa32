"""``torch.utils.checkpoint`` with ``use_reentrant=True`` and MaskedTensors among arguments and results.

Such a checkpoint is a custom autograd function that remembers its plain arguments and runs a second time in backward. A
MaskedTensor would be a constant to it, in a list or as a result even without an error. So its plain parts are handed
over in its place, and put together again inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils import _pytree as pytree

from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["CHECKPOINTS", "apply_on_parts"]

#: where PyTorch's own functions for checkpoints live
CHECKPOINTS = "torch.utils.checkpoint"


def apply_on_parts(apply: Callable[..., Any], cls: type, args: tuple[Any, ...]) -> Any:
    """``CheckpointFunction.apply``: gradients pass through MaskedTensors, also inside of lists, tuples and dicts.

    Other classes (the one that saves the arguments of checkpoints that are not reentrant) are given what they are
    given: what is no tensor is kept as it is, and is used again.
    """
    if cls.__name__ != "CheckpointFunction" or len(args) < 2:
        return apply(cls, *args)
    run, preserve_random_state, *given = args
    leaves, spec = list(given), None
    if any(_is_masked(leaf) for leaf in pytree.tree_leaves(given, _is_masked)):
        leaves, spec = pytree.tree_flatten(given)
    spec_of_results: list[pytree.TreeSpec] = []

    def on_parts(*parts: Any) -> Any:
        result = run(*(parts if spec is None else pytree.tree_unflatten(list(parts), spec)))
        if not any(_is_masked(leaf) for leaf in pytree.tree_leaves(result, _is_masked)):
            return result
        found, of_result = pytree.tree_flatten(result)
        spec_of_results[:] = [of_result]
        return tuple(found)

    result = apply(cls, on_parts, preserve_random_state, *leaves)
    if not spec_of_results:
        return result
    return pytree.tree_unflatten(list(result), spec_of_results[0])


def _is_masked(x: object) -> bool:
    return isinstance(x, MaskedTensor)
