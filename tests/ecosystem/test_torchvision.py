"""torchvision: transforms (v2) refuse MaskedTensors; an image and its mask are moved together."""

from __future__ import annotations

import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

import maskgrad as mg
from tests.ecosystem.truth import assert_refused, garbage


def test_masked_images_refuse() -> None:
    x, values, mask = garbage(3, 6, 7)
    flip = v2.RandomHorizontalFlip(p=1.0)
    for transform in (flip, v2.Compose([v2.RandomCrop(5), flip]), v2.GaussianBlur(3)):
        assert_refused(
            r"tv_tensors\.Mask\(x\.mask\)",
            lambda call=transform: call(x),
            lambda call=transform: call(x, torch.tensor(1)),
            lambda call=transform: call({"image": x, "label": torch.tensor(1)}),
        )
    image, moved = flip(tv_tensors.Image(x.filled(0.0)), tv_tensors.Mask(x.mask))
    found = mg.masked(image.as_subclass(torch.Tensor), moved.as_subclass(torch.Tensor))
    assert torch.equal(found.mask, mask.flip(-1))
    assert torch.equal(found.filled(0.0), values.flip(-1))
