"""Where something comes from that travels from tensor to tensor: a NaN, or a gradient that stands at padding."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from maskgrad.doctor.frames import Lines, Place
from maskgrad.doctor.modes import Guarded
from maskgrad.doctor.operations import EMPTY, Call
from maskgrad.doctor.shadows import Shadows
from maskgrad.doctor.tensors import any_key, tensors_in

__all__ = ["Origin", "Origins", "has_nan", "stands_at_padding"]

#: what puts numbers into a tensor and computes none
_FILLS = {
    "masked_fill", "masked_fill_", "fill_", "full", "full_like", "where", "index_put", "index_put_", "copy_",
}  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """The operation whose results have the mark while no input has it."""

    operation: str
    place: Place | None
    backward: bool


class Origins(Guarded):
    """Each marked tensor knows the operations that its mark comes from.

    In the backward pass only gradients count as inputs: what the forward pass saved may be marked, and a product with
    it is where a clean gradient gets the mark; the mark is then from where the program made what was saved, unless it
    made it out of NaN or infinity that was put there, in the batch or as a marker.

    Args:
        marked: whether a tensor has the mark; None if its shape does not say, then it has it if an input has.
        backward_only: the forward pass is not looked at.
    """

    def __init__(self, marked: Callable[[Tensor], bool | None], *, backward_only: bool = False) -> None:
        super().__init__()
        self._marked, self._backward_only = marked, backward_only
        self._origins: dict[int, dict[Origin, None]] = {}
        self._gradients: set[int] = set()
        #: memory with infinity or NaN that was put there, by the batch or as a marker, and not computed
        self._given: set[int] = set()
        self._nodes = Lines()

    def run(self, call: Call) -> Any:
        """The operation, and whose mark its results have."""
        self._nodes.note()
        backward = torch._C._current_autograd_node() is not None
        if call.facts.view or call.facts.name in EMPTY or (self._backward_only and not backward):
            return call()
        inputs = [tensor for tensor in call.inputs if tensor.is_floating_point()]
        # NaN or infinity comes in that no operation of the program made; masks are made of minus infinity
        given = not backward and any(
            any_key(t) in self._given or (any_key(t) not in self._made and _is_garbage(t)) for t in inputs
        )
        before: dict[Origin, None] = {}
        for tensor in inputs:
            if not backward or any_key(tensor) in self._gradients:
                marked = self._marked(tensor)
                # the batch itself is an origin without an operation
                unknown = {Origin("", None, backward=False): None} if marked and not backward else {}
                if marked is not False:
                    before |= self._origins.get(any_key(tensor), unknown)
        result = call()
        for tensor in tensors_in(result):
            if not tensor.is_floating_point():
                continue
            key = any_key(tensor)
            if backward:
                self._gradients.add(key)
            else:
                self._gradients.discard(key)
                self._given.discard(key)
                if _is_garbage(tensor) if call.facts.name in _FILLS else given and not _finite(tensor):
                    self._given.add(key)
            marked = self._marked(tensor)
            if marked or (marked is None and before):
                made = self._made_before(inputs) if backward and not before else {}
                origin = Origin(call.facts.name, self._nodes.here(), backward)
                self._origins[key] = before or made or {origin: None}
            else:
                self._origins.pop(key, None)
        return result

    def _made_before(self, inputs: list[Tensor]) -> dict[Origin, None]:
        """The operations of the forward pass that gave the mark to what a backward operation reads."""
        made = self.origins(tensor for tensor in inputs if any_key(tensor) not in self._given)
        return {origin: None for origin in made if origin.operation and not origin.backward}

    def origins(self, tensors: Iterable[Tensor]) -> list[Origin]:
        """Where the mark of these tensors comes from."""
        found: dict[Origin, None] = {}
        for tensor in tensors:
            if self._marked(tensor) is not False:
                found |= self._origins.get(any_key(tensor), {})
        return list(found)


def has_nan(tensor: Tensor) -> bool:
    """Whether there is a NaN among the entries."""
    return bool(_stored(tensor).isnan().any())


def _is_garbage(tensor: Tensor) -> bool:
    stored = _stored(tensor)
    return bool((stored.isnan() | stored.isposinf()).any())


def _finite(tensor: Tensor) -> bool:
    return bool(_stored(tensor).isfinite().all())


def _stored(tensor: Tensor) -> Tensor:
    if tensor.layout is torch.strided:
        return tensor
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


def stands_at_padding(masks: list[Tensor]) -> Callable[[Tensor], bool | None]:
    """The mark of a gradient that is not zero where the mask is False; unknown for other shapes."""
    shadows = Shadows(masks)

    def marked(tensor: Tensor) -> bool | None:
        real = shadows.by_shape(tensor) if tensor.layout is torch.strided else None
        return None if real is None else bool((tensor[~real] != 0).any())

    return marked
