"""timm: whole images out of a batch, and images with unspecified pixels, through unmodified models."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import timm.utils
import torch

import maskgrad as mg
from tests.ecosystem.truth import assert_refused

PATCHES = {"img_size": 32, "embed_dim": 24}
SMALL: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": PATCHES | {"depth": 2, "num_heads": 2},
    "deit3_small_patch16_224": PATCHES | {"depth": 2, "num_heads": 2},
    "swin_tiny_patch4_window7_224": PATCHES | {"depths": (1, 1), "num_heads": (2, 2), "window_size": 4},
    "resnet10t": {},
    "convnext_atto": {},
    "mobilenetv3_small_050": {},
    "efficientnet_b0": {},
    "regnetx_002": {},
    "poolformer_s12": {},
}


@pytest.mark.parametrize("name", SMALL)
def test_images(name: str) -> None:
    torch.manual_seed(2)
    model = timm.create_model(name, num_classes=3, **SMALL[name]).eval()
    images = torch.rand(2, 3, 32, 32)
    known = torch.ones(2, 1, 32, 32, dtype=torch.bool)
    torch.testing.assert_close(model(mg.masked(images, known)).filled(torch.nan), model(images))
    known[..., :16] = False
    results = []
    for bad in (torch.nan, 1e38):
        plain = torch.where(known, images, bad).requires_grad_()
        out = model(mg.masked(plain, known))
        gradients = torch.autograd.grad(out.square().sum(), [plain, next(model.parameters())])
        assert not gradients[0][~known.expand_as(plain)].any()
        results.append((out.mask, out.filled(0.0), *gradients))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_accuracy_refuses() -> None:
    scores, labels, known = torch.randn(9, 4), torch.randint(0, 4, (9,)), torch.rand(9) > 0.3
    output, target = mg.masked(scores, known[:, None]), mg.masked(labels, known)
    for pair in ((output, labels), (scores, target), (output, target)):
        assert_refused(
            r"accuracy\(\*mg\.align\(output, target\)\)",
            lambda pair=pair: timm.utils.accuracy(*pair, topk=(1, 2)),
        )
        found = timm.utils.accuracy(*mg.align(*pair), topk=(1, 2))
        assert found == timm.utils.accuracy(scores[known], labels[known], topk=(1, 2))
