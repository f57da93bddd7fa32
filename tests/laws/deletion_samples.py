"""Scans, softmax and its kin, order statistics, normalisation layers and losses: calls along several dimensions.

Each is a call that the operator database could make and mostly does not: along every dimension of tensors of two
shapes, with masks that leave one slice of each dimension empty, and with masks that leave nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.laws.any_type.deletion import ALONG, SHAPES
from tests.laws.any_type.operands import Call, Plan
from tests.laws.any_type.operator_database import Entry
from tests.laws.any_type.samples import Sample

__all__ = ["BY_DELETION", "empty_slices", "samples_by_deletion"]

#: Layers, with their arguments behind the input for a tensor of shape (3, 4, 5).
LAYERS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "nn.functional.layer_norm": (((5,),), ((4, 5),), ((3, 4, 5),)),
    "nn.functional.rms_norm": (((5,),), ((4, 5),), ((3, 4, 5),)),
    "nn.functional.group_norm": ((1,), (2,), (4,)),
    "nn.functional.batch_norm": ((None, None, None, None, True),),
    "nn.functional.instance_norm": ((),),
    "nn.functional.local_response_norm": ((2,), (3,)),
}
LAYER_SHAPE = (3, 4, 5)

REDUCTIONS = ("none", "mean", "sum")
#: Losses of two tensors of one shape, and what makes an ordinary number a valid target.
LOSSES = {
    "nn.functional.mse_loss": lambda x: x,
    "nn.functional.l1_loss": lambda x: x,
    "nn.functional.smooth_l1_loss": lambda x: x,
    "nn.functional.huber_loss": lambda x: x,
    "nn.functional.soft_margin_loss": torch.sign,
    "nn.functional.hinge_embedding_loss": torch.sign,
    "nn.functional.binary_cross_entropy_with_logits": torch.sigmoid,
    "nn.functional.kl_div": torch.sigmoid,
    "nn.functional.poisson_nll_loss": torch.exp,
    "nn.functional.multilabel_soft_margin_loss": lambda x: (x > 0).to(x.dtype),
}
#: Losses of scores of classes along dimension 1 and a class for each.
OF_CLASSES = ("nn.functional.cross_entropy", "nn.functional.nll_loss", "nn.functional.multi_margin_loss")

BY_DELETION = (*ALONG, *LAYERS, *LOSSES, *OF_CLASSES)


def samples_by_deletion(entry: Entry) -> Iterator[tuple[str, Sample]]:
    """The calls of an entry, each with its name."""
    generator = torch.Generator().manual_seed(0)

    def numbers(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(entry.dtype)

    for options in ALONG.get(entry.name, ()):
        for shape in SHAPES:
            for dim in (*range(len(shape)), -1):
                yield f"{shape}, dim {dim}, {options}", Sample((numbers(shape),), {**options, "dim": dim})
    for rest in LAYERS.get(entry.name, ()):
        yield f"{rest}", Sample((numbers(LAYER_SHAPE), *rest), {})
    for reduction in REDUCTIONS if entry.name in LOSSES else ():
        for shape in SHAPES:
            operands = numbers(shape), LOSSES[entry.name](numbers(shape))
            yield f"{shape}, {reduction}", Sample(operands, {"reduction": reduction})
    for reduction in REDUCTIONS if entry.name in OF_CLASSES else ():
        for shape in SHAPES if entry.name != "nn.functional.multi_margin_loss" else SHAPES[:1]:
            classes = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
            yield f"{shape}, {reduction}", Sample((numbers(shape), classes), {"reduction": reduction})


def empty_slices(call: Call) -> Iterator[Plan]:
    """Masks with an empty slice along each dimension that has room for one; and masks without any entry."""
    generator = torch.Generator().manual_seed(1)
    masks = []
    for i in call.data:
        mask = torch.rand(call.tensors[i].shape, generator=generator) < 0.7
        for dim, size in enumerate(mask.shape):
            if size > 2:
                mask.select(dim, size - 1).fill_(False)
        masks.append(mask)
    yield Plan("one slice of each dimension empty", tuple(masks))
    yield Plan("nothing specified", tuple(torch.zeros_like(mask) for mask in masks))
