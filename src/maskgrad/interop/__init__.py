"""To and from pandas, Arrow, polars and other frames, SciPy, and PyTorch's nested and masked tensors.

A missing value stays missing and a NaN stays a NaN: nothing is converted through NaN. The packages are
optional (``pip install 'maskgrad[interop]'``) and are imported by the functions that need them. No function
here unpickles or executes what it reads. The most common ones are in ``maskgrad`` itself: ``from_arrow``,
``from_nested``, ``from_pandas``, ``from_scipy`` and ``from_torch_masked``.
"""

from maskgrad.documents.fitting import pack
from maskgrad.instead import missing_attribute
from maskgrad.interop.collation import collate_jagged
from maskgrad.interop.keyed_jagged import from_keyed_jagged, to_keyed_jagged
from maskgrad.interop.named_tensors import from_tensors, to_tensors
from maskgrad.interop.nested_tensors import to_nested
from maskgrad.interop.scipy_matrices import to_scipy
from maskgrad.interop.sequences import CuSeqlens, lengths, to_cu_seqlens
from maskgrad.interop.to_frames import to_arrow, to_pandas
from maskgrad.interop.token_budget import TokenBudgetSampler

__all__ = [
    "CuSeqlens", "TokenBudgetSampler", "collate_jagged", "from_keyed_jagged", "from_tensors", "lengths",
    "pack", "to_arrow", "to_cu_seqlens", "to_keyed_jagged", "to_nested", "to_pandas", "to_scipy",
    "to_tensors",
]  # fmt: skip


def __getattr__(name: str) -> object:
    raise missing_attribute(__name__, name)
