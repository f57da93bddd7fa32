"""Laws 1 and 2 under ``torch.autocast``: PyTorch's dtypes for the same functions, and no garbage in any of them."""

from __future__ import annotations

import pytest
import torch

from tests.laws.any_type.comparison import assert_same_bits, parts_of
from tests.laws.any_type.evaluation import cotangents_for, gradients
from tests.laws.any_type.operands import plans_for
from tests.laws.any_type.operator_database import Entry, differentiable, takes
from tests.laws.effort import effort_of
from tests.laws.evaluation import plain_parts
from tests.laws.laws import cases, fully_specified
from tests.laws.status import checked_entries

DTYPES = (torch.float32, torch.bfloat16)
#: Where the dtype is another one than PyTorch's, and why.
OTHER_DTYPES = {
    "corrcoef": "float32, where PyTorch rounds what its matrix product gives",
    "cov": "float32, where PyTorch rounds what its matrix product gives",
    "nn.functional.linear_cross_entropy": "float32, where PyTorch rounds the scores first",
    "nn.functional.max_pool3d": "float32 with positions, too",
    "nn.functional.multi_head_attention_forward": "weights that take static keys of float32",
}
ANYWHERE = torch.ones((), dtype=torch.bool)
ENTRIES = [
    Entry(entry.info, dtype) for entry in checked_entries() for dtype in DTYPES if takes(entry.info, dtype)
]


@pytest.mark.forms(per=lambda entry: (entry.operation.family, entry.dtype))
@pytest.mark.parametrize(
    "entry", ENTRIES, ids=lambda entry: f"{entry.id}-{str(entry.dtype).removeprefix('torch.')}"
)
def test_the_laws_hold_under_autocast(entry: Entry) -> None:
    for what, call in cases(entry):
        with torch.autocast("cpu"):
            plain, leaves = call.leaves(False), call.leaves(False)
            args, kwargs = call.with_tensors(plain)
            expected = parts_of(entry.reference(*args, **kwargs))
            args, kwargs = call.masked(leaves, fully_specified(call))
            found = parts_of(entry.function(*args, **kwargs))
        for ours, theirs, filled in zip(found, expected, plain_parts(found), strict=True):
            if isinstance(theirs, torch.Tensor) and entry.operation.name not in OTHER_DTYPES:
                assert ours.dtype == theirs.dtype, f"{what}: {ours.dtype} instead of {theirs.dtype}"
                known = getattr(ours, "mask", ANYWHERE).expand(theirs.shape)
                assert_near(filled[known], theirs[known], what)
        plan, effort = next(plans_for(call, effort_of(entry))), effort_of(entry)
        outcomes = []
        for garbage in effort.garbage:
            leaves = call.leaves(differentiable(entry), plan, garbage)
            with torch.autocast("cpu"):
                args, kwargs = call.masked(leaves, plan)
                result = parts_of(entry.function(*args, **kwargs))
            parts = plain_parts(result)
            masks = [getattr(part, "mask", ANYWHERE) for part in result]
            outcomes.append((parts, gradients(parts, leaves, cotangents_for(parts, masks))))
            for found, first, which in zip(outcomes[-1], outcomes[0], ("result", "gradient"), strict=True):
                assert_same_bits(found, first, f"{what}, {garbage} under the mask: {which}")


def assert_near(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    inexact = expected.is_floating_point() or expected.dtype in (torch.complex64, torch.complex128)
    if not expected.numel() or not inexact:
        return
    largest = float(expected.detach().nan_to_num(0, 0, 0).abs().max())
    half = expected.dtype in (torch.float16, torch.bfloat16)
    torch.testing.assert_close(
        found,
        expected,
        rtol=0.03,
        atol=(0.03 if half else 0.01) * max(largest, 0.2),
        equal_nan=True,
        msg=lambda m: f"{what}: {m}",
    )
