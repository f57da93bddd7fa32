"""To and from pandas, Arrow, polars and other frames, SciPy, and PyTorch's nested, packed and masked tensors.

A missing value stays missing and a NaN stays a NaN: nothing is converted through NaN. The packages are
optional (``pip install 'maskgrad[interop]'``) and are imported by the functions that need them. No function
here unpickles or executes what it reads. The most common ones are in ``maskgrad`` itself: ``from_arrow``,
``from_nested``, ``from_pandas``, ``from_polars``, ``from_scipy`` and ``from_torch_masked``.
"""

from maskgrad.instead import missing_attribute
from maskgrad.interop.collation import collate_jagged
from maskgrad.interop.keyed_jagged import from_keyed_jagged, to_keyed_jagged
from maskgrad.interop.named_tensors import Exported, from_dlpack, from_tensors, to_dlpack, to_tensors
from maskgrad.interop.nested_tensors import to_nested, to_torch_masked
from maskgrad.interop.scipy_matrices import to_scipy
from maskgrad.interop.sequences import CuSeqlens, from_packed, lengths, to_cu_seqlens, to_packed
from maskgrad.interop.to_frames import to_arrow, to_pandas, to_polars
from maskgrad.interop.token_budget import TokenBudgetSampler

__all__ = [
    "CuSeqlens",
    "Exported",
    "TokenBudgetSampler",
    "collate_jagged",
    "from_dlpack",
    "from_keyed_jagged",
    "from_packed",
    "from_tensors",
    "lengths",
    "to_arrow",
    "to_cu_seqlens",
    "to_dlpack",
    "to_keyed_jagged",
    "to_nested",
    "to_packed",
    "to_pandas",
    "to_polars",
    "to_scipy",
    "to_tensors",
    "to_torch_masked",
]


def __getattr__(name: str) -> object:
    raise missing_attribute(__name__, name)
