"""torchvision: transforms (v2) apply to values and mask of a MaskedTensor together, as an image.

They flatten samples as pytrees and transform the first plain tensor as an image: the values of a MaskedTensor were
flipped and the mask was not. torchvision's kernels for images are ordinary PyTorch, which handles MaskedTensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from maskgrad.errors import UnsupportedOperationError
from maskgrad.integrations.integration import Integration
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches.patch import Patch, exchange
from maskgrad.masked_tensor.torch_patches.pytrees import holds_masked, is_masked

__all__ = ["INTEGRATION"]


def _transform_images() -> Callable[[], None]:
    """Register torchvision's kernels for images, and wrap transforms of samples."""
    from torchvision.transforms.v2.functional import _utils

    completed = [kernels for kernels in _utils._KERNEL_REGISTRY.values() if torch.Tensor in kernels]
    for kernels in completed:
        kernels.setdefault(MaskedTensor, kernels[torch.Tensor])

    def is_pure_tensor(original: Callable[[Any], bool], inpt: Any) -> bool:
        return original(inpt) or isinstance(inpt, MaskedTensor)

    module = "torchvision.transforms.v2._transform"
    undone = [
        exchange("torchvision.transforms.v2.functional._utils.is_pure_tensor", is_pure_tensor),
        exchange(f"{module}.Transform.forward", _transformed),
        exchange(f"{module}._RandomApplyTransform.forward", functools.partial(_transformed, by_chance=True)),
        exchange(f"{module}.Transform.__call__", _transform_or_refuse),
    ]

    def undo() -> None:
        for kernels in completed:
            kernels.pop(MaskedTensor, None)
        for put_back in undone:
            put_back()

    return undo


def _transformed(original: Callable[..., Any], self: Any, *inputs: Any, by_chance: bool = False) -> Any:
    """``Transform.forward``, which selects inputs, and computes parameters once for all of them."""
    sample = inputs if len(inputs) > 1 else inputs[0]
    leaves, spec = pytree.tree_flatten(sample, is_masked)
    if not any(map(is_masked, leaves)):
        return original(self, *inputs)
    from torchvision import tv_tensors

    # Placeholders with type, size and dtype: parameters depend on nothing else.
    plain = [tv_tensors.Image(leaf._dense()[0].detach()) if is_masked(leaf) else leaf for leaf in leaves]
    self.check_inputs(plain)
    if by_chance and torch.rand(1) >= self.p:
        return sample
    needed = self._needs_transform_list(plain)
    params = self.make_params([leaf for leaf, needs in zip(plain, needed, strict=True) if needs])
    pairs = zip(leaves, needed, strict=True)
    return pytree.tree_unflatten([self.transform(x, params) if needs else x for x, needs in pairs], spec)


def _transform_or_refuse(original: Callable[..., Any], self: Any, *inputs: Any, **kwargs: Any) -> Any:
    """Raise an error for transforms that flatten their samples differently."""
    from torchvision.transforms.v2 import Transform
    from torchvision.transforms.v2._transform import _RandomApplyTransform

    name, forward = type(self).__name__, type(self).forward
    hands_on = name in ("Compose", "RandomApply", "RandomChoice", "RandomOrder")
    if holds_masked(inputs) and not (
        hands_on or forward in (Transform.forward, _RandomApplyTransform.forward)
    ):
        raise UnsupportedOperationError(
            f"torchvision.transforms.v2.{name}",
            "it takes samples apart in a way of its own, and would transform the values and not the mask",
            "Transform x.filled(0.), or take transforms that are one operation each.",
        )
    return original(self, *inputs, **kwargs)


INTEGRATION = Integration(
    "torchvision",
    without="wrong in silence",
    patches=(
        Patch(
            target="torchvision.transforms.v2.Transform",
            reason="transforms the values of a MaskedTensor and not its mask",
            without="transforms of torchvision move the values of a MaskedTensor and not its mask; transform "
            "tv_tensors.Image(x.filled(0.)) and tv_tensors.Mask(x.mask) together",
            test="tests/ecosystem/test_torchvision.py::test_flips_and_crops",
            needs={
                "torchvision.transforms.v2.functional._utils._KERNEL_REGISTRY": None,
                "torchvision.transforms.v2.functional._utils.is_pure_tensor": "inpt",
                "torchvision.transforms.v2._transform.Transform.make_params": "self flat_inputs",
                "torchvision.transforms.v2._transform.Transform.check_inputs": "self flat_inputs",
                "torchvision.transforms.v2._transform.Transform.transform": "self inpt params",
                "torchvision.transforms.v2._transform.Transform._needs_transform_list": "self flat_inputs",
                "torchvision.transforms.v2._transform._RandomApplyTransform.forward": "self inputs",
            },
            install=_transform_images,
            after="torchvision.transforms.v2",
        ),
    ),
)
