"""timm: whole images out of a batch, and images with unspecified pixels, through unmodified models."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import timm.utils
import torch

import maskgrad as mg
from tests.ecosystem.rows import refused, works

SMALL: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 2},
    "deit3_small_patch16_224": {"img_size": 32, "depth": 2, "embed_dim": 24, "num_heads": 2},
    "swin_tiny_patch4_window7_224": {
        "img_size": 32,
        "embed_dim": 24,
        "depths": (1, 1),
        "num_heads": (2, 2),
        "window_size": 4,
    },
    "resnet10t": {},
    "convnext_atto": {},
    "mobilenetv3_small_050": {},
    "efficientnet_b0": {},
    "regnetx_002": {},
    "poolformer_s12": {},
}


def model_of(name: str) -> Any:
    torch.manual_seed(2)
    return timm.create_model(name, num_classes=3, **SMALL[name]).eval()


@works(
    "timm",
    "ViT, DeiT, Swin, ResNet, ConvNeXt, MobileNet, EfficientNet, RegNet, PoolFormer: fully specified as plain images",
)
@works("timm", "the same nine, with unspecified pixels: their values have no effect, forward and backward")
@pytest.mark.parametrize("name", SMALL)
def test_images(name: str) -> None:
    model = model_of(name)
    images = torch.rand(2, 3, 32, 32)
    known = torch.ones(2, 1, 32, 32, dtype=torch.bool)
    torch.testing.assert_close(model(mg.masked(images, known)).filled(torch.nan), model(images))
    known[..., :16] = False
    results = []
    for bad in (torch.nan, 1e38):
        plain = torch.where(known, images, bad).requires_grad_()
        model.zero_grad()
        out = model(mg.masked(plain, known))
        out.square().sum().backward()
        assert plain.grad is not None
        assert not plain.grad[~known.expand_as(plain)].any()
        results.append((out.mask, out.filled(0.0), plain.grad, next(model.parameters()).grad.clone()))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@refused("timm", "`timm.utils.accuracy`", "`accuracy(*mg.align(output, target))`")
def test_accuracy_refuses() -> None:
    torch.manual_seed(0)
    scores, labels, known = torch.randn(9, 4), torch.randint(0, 4, (9,)), torch.rand(9) > 0.3
    output = mg.masked(torch.where(known[:, None], scores, 1e38), known[:, None])
    target = mg.masked(torch.where(known, labels, 77), known)
    for pair in ((output, labels), (scores, target), (output, target)):
        with pytest.raises(mg.UnsupportedOperationError, match=r"accuracy\(\*mg\.align\(output, target\)\)"):
            timm.utils.accuracy(*pair, topk=(1, 2))
        found = timm.utils.accuracy(*mg.align(*pair), topk=(1, 2))
        assert found == timm.utils.accuracy(scores[known], labels[known], topk=(1, 2))
