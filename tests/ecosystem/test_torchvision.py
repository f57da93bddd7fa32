"""torchvision: transforms (v2) move values and mask together; what mixes pixels means what it means elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

import maskgrad as mg
from maskgrad.errors import MaskgradError, UnsupportedOperationError
from tests.ecosystem.rows import refused, works
from tests.ecosystem.truth import garbage


@works(
    "torchvision",
    "`transforms.v2`: flips, crops, padding, `Compose`, `RandomApply`; the mask moves with the values",
)
@pytest.mark.parametrize(
    "transform",
    [
        v2.RandomHorizontalFlip(p=1.0),
        v2.RandomVerticalFlip(p=1.0),
        v2.CenterCrop(4),
        v2.RandomCrop(3),
        v2.Pad(2),
        v2.Compose([v2.RandomCrop(5), v2.RandomHorizontalFlip(p=1.0)]),
        v2.RandomApply([v2.RandomVerticalFlip(p=1.0)], p=1.0),
        v2.RandomChoice([v2.CenterCrop(2)]),
        v2.RandomOrder([v2.CenterCrop(6), v2.RandomHorizontalFlip(p=1.0)]),
        v2.Identity(),
    ],
    ids=lambda t: type(t).__name__,
)
def test_flips_and_crops(transform: Any) -> None:
    x, values, mask = garbage(3, 6, 7)
    torch.manual_seed(3)
    found = transform(x)
    torch.manual_seed(3)
    image, moved = transform(tv_tensors.Image(values), tv_tensors.Mask(mask.to(torch.uint8)))
    known = moved.bool()
    if isinstance(transform, v2.Pad):  # what an operation itself creates is specified
        edge = torch.ones_like(known)
        edge[:, 2:-2, 2:-2] = False
        known = known | edge
    assert found.shape == image.shape
    assert torch.equal(found.mask, known)
    assert torch.equal(found.filled(0.0), image.as_subclass(torch.Tensor) * known)


@works("torchvision", "`Normalize`, `ToDtype`, `Lambda`, `RandomErasing`")
def test_entry_by_entry() -> None:
    x, values, mask = garbage(3, 6, 7)
    normalize = v2.Normalize(mean=[0.1, 0.2, 0.3], std=[1.0, 2.0, 3.0])
    found = normalize(x)
    assert torch.equal(found.mask, mask)
    torch.testing.assert_close(found.filled(0.0), torch.where(mask, normalize(values), 0.0))
    assert v2.ToDtype(torch.float64)(x).dtype == torch.float64
    assert torch.equal(v2.Lambda(lambda t: t * 2)(x).filled(0.0), values * 2)
    erased = v2.RandomErasing(p=1.0, value=0)(x)
    assert bool((erased.mask | ~mask).all())


@works("torchvision", "samples with labels, boxes and several images")
def test_samples() -> None:
    x, values, mask = garbage(3, 6, 7)
    label = torch.tensor([1.0, 2.0])
    boxes = tv_tensors.BoundingBoxes([[0, 0, 2, 3]], format="XYXY", canvas_size=(6, 7))
    found = v2.RandomHorizontalFlip(p=1.0)({"image": x, "label": label, "boxes": boxes, "depth": x[:1]})
    assert torch.equal(found["image"].mask, mask.flip(-1))
    assert torch.equal(found["depth"].filled(0.0), values[:1].flip(-1))
    assert found["label"] is label
    assert found["boxes"].tolist() == [[5, 0, 7, 3]]
    skipped = v2.RandomHorizontalFlip(p=0.0)(x)
    assert torch.equal(skipped.mask, mask)


@works("torchvision", "functions of `transforms.v2.functional` that move pixels")
def test_functions() -> None:
    x, values, mask = garbage(3, 6, 7)
    found = v2.functional.crop(v2.functional.horizontal_flip(x), 1, 1, 3, 4)
    assert torch.equal(found.mask, mask.flip(-1)[:, 1:4, 1:5])
    assert torch.equal(found.filled(0.0), values.flip(-1)[:, 1:4, 1:5])


def test_the_mean_that_was_wrong() -> None:
    image = torch.tensor([[[9.0, 1e3], [9.0, -1e3]]])
    mask = torch.tensor([[[True, False], [True, False]]])
    assert v2.RandomHorizontalFlip(p=1.0)(mg.masked(image, mask)).mean().item() == 9.0


@works("torchvision", "`Resize`, `RandomResizedCrop`: by the rule of `torch.nn.functional.interpolate`")
@pytest.mark.parametrize("size", [(3, 4), (12, 9)])
def test_resizing(size: tuple[int, int]) -> None:
    x, _, _ = garbage(3, 6, 7)
    found = v2.Resize(size, antialias=False)(x)
    truth = torch.nn.functional.interpolate(x[None], size, mode="bilinear")[0]
    assert torch.equal(found.mask, truth.mask)
    torch.testing.assert_close(found.filled(0.0), truth.filled(0.0))
    assert bool(found.filled(0.0).isfinite().all())


@refused(
    "torchvision",
    "`AutoAugment`, `RandAugment`, `MixUp`, `CutMix`",
    "`x.filled(0.)`, or single transforms",
)
def test_transforms_of_another_kind_refuse() -> None:
    x, _, _ = garbage(3, 6, 7)
    for transform in (v2.AutoAugment(), v2.RandAugment(), v2.TrivialAugmentWide(), v2.AugMix()):
        with pytest.raises(UnsupportedOperationError, match=r"Transform x\.filled\(0\.\)"):
            transform(x)
    batch = torch.stack([x, x])
    with pytest.raises(UnsupportedOperationError, match="in a way of its own"):
        v2.MixUp(num_classes=3)(batch, torch.tensor([0, 1]))


ANY = [
    v2.RandomRotation(20),
    v2.RandomAffine(10, translate=(0.1, 0.1)),
    v2.RandomPerspective(p=1.0),
    v2.ElasticTransform(sigma=0.5),
    v2.GaussianBlur(3),
    v2.GaussianNoise(),
    v2.ColorJitter(0.1, 0.1, 0.1, 0.1),
    v2.Grayscale(),
    v2.RandomInvert(p=1.0),
    v2.RandomPosterize(2, p=1.0),
    v2.RandomSolarize(0.5, p=1.0),
    v2.RandomAutocontrast(p=1.0),
    v2.RandomEqualize(p=1.0),
    v2.RandomAdjustSharpness(2.0, p=1.0),
    v2.RandomZoomOut(p=1.0),
    v2.RandomResizedCrop(4),
    v2.ScaleJitter((8, 8)),
    v2.LinearTransformation(torch.eye(126), torch.zeros(126)),
    v2.ToPureTensor(),
    v2.FiveCrop(3),
    v2.RandomChannelPermutation(),
    v2.RGB(),
]


@works(
    "torchvision", "rotations, blur, noise, colours, 22 transforms: by the rules of the operations in them"
)
@refused("torchvision", "`ColorJitter` with a hue, `ToPureTensor`", "`x.filled(0.)`")
@pytest.mark.parametrize("transform", ANY, ids=lambda t: type(t).__name__)
def test_nothing_under_the_mask_is_seen_by_any(transform: Any) -> None:
    """Two kinds of garbage, one result; or a refusal."""
    values, mask = torch.rand(3, 6, 7), torch.rand(3, 6, 7) < 0.8
    found = []
    for bad in (0.25, 0.75):
        torch.manual_seed(1)
        x = mg.masked(torch.where(mask, values, bad), mask)
        try:
            out = transform(x)
        except (MaskgradError, TypeError, RuntimeError, ValueError) as error:
            found.append(f"{type(error).__name__}: {error}")
            continue
        parts = out if isinstance(out, tuple) else (out,)
        assert all(isinstance(part, mg.MaskedTensor) for part in parts)
        found.append([(part.mask.tolist(), part.filled(0.0).tolist()) for part in parts])
    assert found[0] == found[1]
