"""torchvision: transforms (v2) refuse MaskedTensors; an image and its mask are moved together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

import maskgrad as mg
from maskgrad.errors import UnsupportedOperationError
from tests.ecosystem.rows import one_line, refused
from tests.ecosystem.truth import garbage


@one_line(
    "torchvision",
    "`transforms.v2` of images",
    "`image, mask = transform(tv_tensors.Image(x.filled(0.)), tv_tensors.Mask(x.mask))`, `mg.masked(image, mask)`",
)
@refused("torchvision", "MaskedTensors in `transforms.v2`", "`tv_tensors.Image` and `tv_tensors.Mask`")
@pytest.mark.parametrize(
    "transform",
    [
        v2.RandomHorizontalFlip(p=1.0),
        v2.Compose([v2.RandomCrop(5), v2.RandomVerticalFlip(p=1.0)]),
        v2.GaussianBlur(3),
        v2.Normalize(mean=[0.1, 0.2, 0.3], std=[1.0, 2.0, 3.0]),
    ],
    ids=lambda t: type(t).__name__,
)
def test_masked_images_refuse(transform: Any) -> None:
    x, _, _ = garbage(3, 6, 7)
    for sample in ((x,), (x, torch.tensor(1)), ({"image": x, "label": torch.tensor(1)},)):
        with pytest.raises(UnsupportedOperationError, match=r"tv_tensors\.Mask\(x\.mask\)"):
            transform(*sample)


def test_the_remedy() -> None:
    x, values, mask = garbage(3, 6, 7)
    image, moved = v2.RandomHorizontalFlip(p=1.0)(tv_tensors.Image(x.filled(0.0)), tv_tensors.Mask(x.mask))
    found = mg.masked(image.as_subclass(torch.Tensor), moved.as_subclass(torch.Tensor))
    assert torch.equal(found.mask, mask.flip(-1))
    assert torch.equal(found.filled(0.0), values.flip(-1))
