"""Reductions, scans, softmax and its kin, order statistics, layers and losses: calls along several dimensions.

Each is a call that the operator database could make and mostly does not: along every dimension of tensors of two
shapes, with masks that leave one slice of each dimension empty, and with masks that leave nothing; of reductions with
ties, zeros, infinities and NaN among the entries.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from tests.laws.any_type.operands import Call, Plan
from tests.laws.any_type.operator_database import Entry
from tests.laws.any_type.samples import Sample

__all__ = [
    "ALONG", "BY_DELETION", "LOSSES", "OF_ONE", "OF_SEVERAL", "REDUCTIONS", "empty_slices", "samples_by_deletion",
]  # fmt: skip

SHAPES = ((3, 5), (2, 3, 4))

#: Operations along one dimension: arguments to try besides ``dim``.
ALONG: dict[str, tuple[dict[str, Any], ...]] = {
    "cumsum": ({}, {"dtype": torch.float64}),
    "cumprod": ({},),
    "logcumsumexp": ({},),
    "cummax": ({},),
    "cummin": ({},),
    "diff": ({}, {"n": 2}),
    "trapezoid": ({}, {"dx": 0.5}),
    "cumulative_trapezoid": ({},),
    "softmax": ({}, {"dtype": torch.float64}),
    "log_softmax": ({},),
    "nn.functional.softmin": ({},),
    "nn.functional.normalize": ({}, {"p": 1.0}, {"p": 3.0}),
    "sort": ({}, {"descending": True}),
    "argsort": ({}, {"descending": True}),
    "topk": ({"k": 1}, {"k": 2, "largest": False}),
    "kthvalue": ({"k": 1}, {"k": 2, "keepdim": True}),
    "median": ({}, {"keepdim": True}),
    "nanmedian": ({},),
    "mode": ({}, {"keepdim": True}),
    "quantile": ({"q": 0.3}, {"q": 0.5, "interpolation": "lower"}, {"q": 1.0, "keepdim": True}),
    "nanquantile": ({"q": 0.3}, {"q": 0.0, "interpolation": "midpoint"}),
}

KEPT: tuple[dict[str, Any], ...] = ({}, {"keepdim": True})
CORRECTED = (*KEPT, {"correction": 0}, {"correction": 2, "keepdim": True}, {"unbiased": False})
ORDERS = (2, 1, 0, 3, 0.5, inf, -inf, -1)
#: Of several dimensions, with what to try beside them …
OF_SEVERAL: dict[str, tuple[dict[str, Any], ...]] = {
    **dict.fromkeys(("sum", "mean"), (*KEPT, {"dtype": torch.float64})),
    **dict.fromkeys(("nansum", "nanmean", "logsumexp", "any", "all", "amax", "amin", "hash_tensor"), KEPT),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), CORRECTED),
    "count_nonzero": ({},),
    "linalg.vector_norm": tuple({"ord": p} for p in ORDERS),
    "norm": tuple({"p": p, "keepdim": p == 1} for p in ORDERS),
}
#: … or of one.
OF_ONE = ("prod", "aminmax", "argmax", "argmin", "max-reduction_with_dim", "min-reduction_with_dim")
OF_DIMENSIONS = ("logsumexp", *OF_ONE[4:])  # which must be named
REDUCTIONS = OF_SEVERAL | dict.fromkeys(OF_ONE, KEPT) | {"prod": OF_SEVERAL["sum"]}
#: What PyTorch computes in its own way next to infinities and NaN.
OTHERWISE = {
    **dict.fromkeys(
        ("var_mean", "std_mean"), "Welford's mean is NaN next to an infinity; ours is torch.mean's"
    ),
    "nanmean": "PyTorch's gradient is NaN where all entries of a slice are; ours is 0",
}

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

MODES = ("none", "mean", "sum")
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

BY_DELETION = (*REDUCTIONS, *ALONG, *LAYERS, *LOSSES, *OF_CLASSES)


KINDS = ("ordinary", "ties", "specials")


def samples_by_deletion(entry: Entry, kinds: tuple[str, ...] = KINDS) -> Iterator[tuple[str, Sample]]:
    """The calls of an entry, each with its name; reductions also of ties, and of infinities and NaN."""
    generator = torch.Generator().manual_seed(0)

    def numbers(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(entry.dtype)

    def contents(kind: str, shape: tuple[int, ...]) -> Tensor:
        """Numbers; few different ones, so that there are ties and zeros; or infinities and NaN among them."""
        x = numbers(shape)
        if kind == "ties":
            return x.round().clamp(-1, 1)
        special = torch.tensor([inf, -inf, nan, *[0.0] * 9])[torch.randint(12, shape, generator=generator)]
        return torch.where(special == 0, x, special.to(x.dtype)) if kind == "specials" else x

    kinds = tuple(kind for kind in kinds if kind != "specials" or entry.id not in OTHERWISE)
    for options, shape, kind in itertools.product(REDUCTIONS.get(entry.id, ()), SHAPES, kinds):
        several = [{"dim": (0, len(shape) - 1)}] if entry.id in OF_SEVERAL else []
        everything = [{}] if "keepdim" not in options and entry.id not in OF_DIMENSIONS else []
        for dims in (*({"dim": dim} for dim in range(-1, len(shape))), *several, *everything):
            yield f"{kind} {shape}, {dims | options}", Sample((contents(kind, shape),), dims | options)
    for options in ALONG.get(entry.name, ()):
        for shape in SHAPES:
            for dim in (*range(len(shape)), -1):
                yield f"{shape}, dim {dim}, {options}", Sample((numbers(shape),), {**options, "dim": dim})
    for rest in LAYERS.get(entry.name, ()):
        yield f"{rest}", Sample((numbers(LAYER_SHAPE), *rest), {})
    for reduction in MODES if entry.name in LOSSES else ():
        for shape in SHAPES:
            operands = numbers(shape), LOSSES[entry.name](numbers(shape))
            yield f"{shape}, {reduction}", Sample(operands, {"reduction": reduction})
    for reduction in MODES if entry.name in OF_CLASSES else ():
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
