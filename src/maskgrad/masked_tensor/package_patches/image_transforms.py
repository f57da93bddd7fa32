"""Transforms of torchvision (v2) move the mask with the values.

They take samples apart as pytrees, transform the first plain tensor as an image and leave the others alone: of a
MaskedTensor the values were flipped and the mask was not. Here a MaskedTensor is an image: torchvision's kernels for
images are ordinary PyTorch, and each operation in them means what it means elsewhere, or refuses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from maskgrad.errors import UnsupportedOperationError
from maskgrad.masked_tensor.package_patches.refusing import has_masked
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.exchange import exchange

__all__ = ["install"]

_MODULE = "torchvision.transforms.v2._transform"
#: Transforms that hand their sample on to others.
_CONTAINERS = ("Compose", "RandomApply", "RandomChoice", "RandomOrder")


def _is_masked(x: object) -> bool:
    return isinstance(x, MaskedTensor)


def _forward(original: Callable[..., Any], by_chance: bool = False) -> Callable[..., Any]:
    """``Transform.forward``, which chooses what to transform and asks for parameters once for all of it."""

    @functools.wraps(original)
    def forward(self: Any, *inputs: Any) -> Any:
        sample = inputs if len(inputs) > 1 else inputs[0]
        leaves, spec = pytree.tree_flatten(sample, _is_masked)
        if not any(map(_is_masked, leaves)):
            return original(self, *inputs)
        from torchvision import tv_tensors

        # Stand-ins that say type, size and dtype: parameters depend on nothing else.
        plain = [tv_tensors.Image(leaf._dense()[0].detach()) if _is_masked(leaf) else leaf for leaf in leaves]
        self.check_inputs(plain)
        if by_chance and torch.rand(1) >= self.p:
            return sample
        needed = self._needs_transform_list(plain)
        params = self.make_params([leaf for leaf, needs in zip(plain, needed, strict=True) if needs])
        pairs = zip(leaves, needed, strict=True)
        return pytree.tree_unflatten([self.transform(x, params) if needs else x for x, needs in pairs], spec)

    return forward


def _call(original: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse where a transform takes its sample apart in a way of its own."""

    @functools.wraps(original)
    def call(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if has_masked(inputs) and not _is_known(type(self)):
            raise UnsupportedOperationError(
                f"torchvision.transforms.v2.{type(self).__name__}",
                "it takes samples apart in a way of its own, and would transform the values and not the mask",
                "Transform x.filled(0.), or take transforms that are one operation each.",
            )
        return original(self, *inputs, **kwargs)

    return call


def _is_known(transform: Any) -> bool:
    from torchvision.transforms.v2 import Transform
    from torchvision.transforms.v2._transform import _RandomApplyTransform

    forward = transform.forward
    return transform.__name__ in _CONTAINERS or forward in (Transform.forward, _RandomApplyTransform.forward)


def _counts_masked(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """``is_pure_tensor``, by which a transform knows what is an image without being called so."""

    @functools.wraps(original)
    def is_pure_tensor(inpt: Any) -> bool:
        return original(inpt) or isinstance(inpt, MaskedTensor)

    return is_pure_tensor


def install() -> None:
    """Register the kernels for images, and look into samples."""
    from torchvision.transforms.v2.functional import _utils

    for kernels in _utils._KERNEL_REGISTRY.values():
        if torch.Tensor in kernels:
            kernels.setdefault(MaskedTensor, kernels[torch.Tensor])
    exchange("torchvision.transforms.v2.functional._utils.is_pure_tensor", _counts_masked)
    exchange(f"{_MODULE}.Transform.forward", _forward)
    exchange(f"{_MODULE}._RandomApplyTransform.forward", functools.partial(_forward, by_chance=True))
    exchange(f"{_MODULE}.Transform.__call__", _call)
