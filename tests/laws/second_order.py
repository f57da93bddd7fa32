"""Second derivatives over the specified entries, against finite differences in double precision."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from maskgrad import MaskedTensor
from tests.effort import is_light
from tests.laws.any_type.comparison import HALVES, parts_of
from tests.laws.any_type.operands import Call, Plan, plans_for
from tests.laws.any_type.operator_database import Entry, differentiable
from tests.laws.any_type.samples import OWN
from tests.laws.effort import samples_of
from tests.laws.laws import refused

__all__ = ["UNCHECKED", "check_derivatives", "has_second_derivatives"]

#: Up to how many entries a call has that is checked: finite differences get worse with more.
LARGEST = 8192

WIDE = dict.fromkeys((torch.float32, *HALVES), torch.float64) | {torch.complex64: torch.complex128}


def wide(entry: Entry) -> torch.dtype:
    """The dtype of the entry's samples, in double precision."""
    return WIDE.get(entry.dtype, entry.dtype)


#: Entries that have gradients, but nothing that finite differences in double precision could check.
UNCHECKED = {
    **dict.fromkeys(("bfloat16", "half", "float", "chalf", "cfloat"), "rounds to a narrower dtype"),
    **dict.fromkeys(
        ("normal", "normal-number_mean"), "torch gives the mean of a random draw the gradient zero"
    ),
    "nn.functional.ctc_loss": "torch's gradient is that of the logits behind a log-softmax, and has no derivative",
    "linalg.norm-subgradients_at_zero": "made of points where there is no derivative, only a choice",
    **dict.fromkeys(
        ("nn.functional.max_unpool1d", "nn.functional.max_unpool2d", "nn.functional.max_unpool3d"),
        "its samples write to one place twice, whose gradient torch sends to both; the variant grad is checked",
    ),
    "grid_sampler_3d": "its samples have one result, or 20000 entries; nn.functional.grid_sample is checked",
    "slice_scatter": "each of its samples has 16000 entries; other operations that write are checked",
}


def has_second_derivatives(entry: Entry) -> bool:
    """Whether torch says that the entry is twice differentiable, and double precision can tell."""
    if not differentiable(entry) or not entry.info.supports_gradgrad or entry.id in UNCHECKED:
        return False
    return wide(entry) in entry.info.dtypes


def check_derivatives(entry: Entry) -> None:
    """gradcheck and gradgradcheck of the specified results in the specified entries, with NaN under the masks."""
    checked, wanted = 0, 1 if is_light() else 2
    for sample in samples_of(entry, wide(entry), 32):
        call = Call.of(entry, sample)
        if not call.data or sum(tensor.numel() for tensor in call.tensors) > LARGEST or refused(entry, call):
            continue
        plans = list(plans_for(call, OWN))[:2]
        checked += any(
            check_call(entry, variant, plan) for plan in plans for variant in (call, absolute(call))
        )
        if checked == wanted:
            return
    assert checked, f"{entry.id}: no sample has finite, differentiable results"


def absolute(call: Call) -> Call:
    """The same call on absolute values, for operations whose domain is positive."""
    tensors = [t.abs() if t.is_floating_point() and i in call.data else t for i, t in enumerate(call.tensors)]
    return replace(call, tensors=tensors)


def check_call(entry: Entry, call: Call, plan: Plan) -> bool:
    """Check one call under one choice of masks; False if its results are not finite or not differentiable."""
    templates, masks = call.leaves(False, plan, "nan"), call.masks(plan)
    moving = [i for i in call.moving if templates[i].is_floating_point() or templates[i].is_complex()]
    points = [call.tensors[i].detach()[masks[i]].requires_grad_() for i in moving]

    def function(*entries: Tensor) -> tuple[Tensor, ...]:
        tensors: list[Tensor] = list(templates)
        for i, values in zip(moving, entries, strict=True):
            tensors[i] = templates[i].masked_scatter(masks[i], values)
        args, kwargs = call.masked(tensors, plan)
        parts = parts_of(entry.function(*args, **kwargs))
        if not chosen:  # forward mode has no graph to tell them by
            chosen.extend(i for i, part in enumerate(parts) if part.requires_grad)
        found = [parts[i] for i in chosen]
        return tuple(part.compressed() if isinstance(part, MaskedTensor) else part for part in found)

    chosen: list[int] = []
    results = function(*points)
    if not any(result.numel() for result in results) or not all(
        result.isfinite().all() for result in results
    ):
        return False
    options = {"fast_mode": True, "nondet_tol": entry.info.gradcheck_nondet_tol}
    assert gradcheck(function, points, check_forward_ad=entry.info.supports_forward_ad, **options)
    assert gradgradcheck(function, points, **options)
    return True
