"""Laws 1 and 2 in the other dtypes that an operation takes: with fewer samples, masks and kinds of garbage."""

from __future__ import annotations

import pytest
import torch

from tests.laws.laws import check_identity, check_non_interference
from tests.laws.operator_database import Entry
from tests.laws.variants import in_other_dtypes
from tests.oldest_torch import skip_on_the_oldest

# What PyTorch 2.9 itself adds up or compares in a half, and later ones in float32.
ROUNDED_BY_THE_OLDEST = {
    "histc": (torch.float16, torch.bfloat16),
    "index_reduce": (torch.bfloat16,),
    "nn.functional.fractional_max_pool3d": (torch.bfloat16,),
    "nn.functional.interpolate": (torch.bfloat16,),
}


@pytest.mark.dtypes(per=lambda entry: (entry.operation.family, entry.dtype))
@pytest.mark.parametrize(
    "entry", in_other_dtypes(), ids=lambda entry: f"{entry.id}-{entry.dtype}".replace("torch.", "")
)
def test_the_laws_hold_in_every_dtype(entry: Entry) -> None:
    if entry.dtype in ROUNDED_BY_THE_OLDEST.get(entry.name, ()):
        skip_on_the_oldest(f"rounds {entry.name} of {entry.dtype} on the way")
    if entry.name in ("var", "var_mean") and entry.dtype is torch.complex64:
        skip_on_the_oldest(
            "draws a sample of infinite variance, whose gradient has other infinite parts than PyTorch's"
        )
    check_identity(entry)
    check_non_interference(entry)
