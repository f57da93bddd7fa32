"""``torch.vmap`` over samples, entered by a shorter way.

``torch.vmap`` flattens whatever it is given and looks up what every part of it is for, which takes a tenth of the time
where layers are small (32 samples of 20 words: 1.0 ms with it, 0.9 ms without). What is given here is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch._C import _functorch as functorch
from torch._functorch import vmap
from torch.utils import _pytree as pytree

from maskgrad.masked_tensor import MaskedTensor

__all__ = ["for_each_sample"]

_parts_of_vmap: Any = vmap
OfOneSample = Callable[[dict[str, Tensor], Tensor, list[Any]], tuple[Tensor, ...]]


def for_each_sample(
    function: OfOneSample,
    copies: Mapping[str, Tensor],
    numbers: Tensor,
    leaves: Sequence[Tensor | MaskedTensor],
    randomness: str,
) -> tuple[Tensor, ...]:
    """``torch.vmap(function)(copies, numbers, leaves)``.

    Args:
        function: of a sample's copies of the parameters, its number, and its part of the leaves.
        copies: parameters, (B, *shape) each.
        numbers: of the samples, (B,).
        leaves: (B, ...) each.
        randomness: as for ``torch.vmap``.

    Returns:
        What the function returns, (B, ...) each.
    """
    _parts_of_vmap.lazy_load_decompositions()
    size = len(numbers)
    with _parts_of_vmap.vmap_increment_nesting(size, randomness) as level:

        def one(x: Tensor) -> Tensor:
            found: Tensor = functorch._add_batch_dim(x, 0, level)
            return found

        def part(leaf: Tensor | MaskedTensor) -> Any:
            return one(leaf) if isinstance(leaf, Tensor) else pytree.tree_map(one, leaf)

        found = function(
            {name: one(copy) for name, copy in copies.items()}, one(numbers), [part(leaf) for leaf in leaves]
        )
        return tuple([functorch._remove_batch_dim(x, level, size, 0) for x in found])
