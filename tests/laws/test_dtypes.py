"""Laws 1 and 2 in the other dtypes that an operation takes: with fewer samples, masks and kinds of garbage."""

from __future__ import annotations

import pytest
import torch

from tests.laws.laws import check_identity, check_non_interference
from tests.laws.operator_database import NOT_IN, Entry
from tests.laws.status import checked_entries

#: float16 takes the ways of bfloat16: one entry of each family is enough.
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool)


#: Operations that cannot be compared in narrow dtypes: from which on, and why.
INCOMPARABLE = {
    "nn.functional.scaled_dot_product_attention": (torch.float32, "large scores amplify rounding"),
    "nn.functional.multi_head_attention_forward": (torch.float32, "large scores amplify rounding"),
    **dict.fromkeys(
        ("nn.functional.grid_sample", "grid_sampler_2d", "grid_sampler_3d"),
        (torch.bfloat16, "so coarse that many places are on a pixel, where the derivative does not exist"),
    ),
    "nn.functional.adaptive_avg_pool3d": (torch.bfloat16, "torch adds in the narrow dtype, we in float32"),
}


def comparable(entry: Entry) -> bool:
    if entry.name not in INCOMPARABLE or not entry.dtype.is_floating_point:
        return True
    widest, _ = INCOMPARABLE[entry.name]
    return entry.dtype.itemsize > widest.itemsize


def takes(entry: Entry, dtype: torch.dtype) -> bool:
    """Whether torch takes the dtype, and nothing is to be said against a test."""
    excluded, _ = NOT_IN.get(entry.name, ((), ""))
    return dtype in entry.info.dtypes and dtype not in excluded


def in_other_dtypes() -> list[Entry]:
    entries = checked_entries()
    found = [
        *(Entry(e.info, dtype) for e in entries for dtype in DTYPES if dtype != e.dtype and takes(e, dtype)),
        *(
            Entry(e.info, torch.float16)
            for e in {e.operation.family: e for e in entries if takes(e, torch.float16)}.values()
        ),
    ]
    return [entry for entry in found if comparable(entry)]


@pytest.mark.parametrize(
    "entry", in_other_dtypes(), ids=lambda entry: f"{entry.id}-{entry.dtype}".replace("torch.", "")
)
def test_the_laws_hold_in_every_dtype(entry: Entry) -> None:
    check_identity(entry)
    check_non_interference(entry)
