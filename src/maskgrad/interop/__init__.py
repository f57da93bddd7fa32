"""To and from the neighbours: pandas, Arrow, polars, awkward, SciPy, and PyTorch's nested, packed and masked tensors.

A missing value stays missing and a NaN stays a NaN: nothing goes through NaN on the way. The packages are
optional (``pip install 'maskgrad[interop]'``) and are imported by the functions that need them. No function
here unpickles or runs anything that it reads.
"""

from maskgrad.interop import arrow_capsules
from maskgrad.interop.arrow_arrays import from_arrow, to_arrow
from maskgrad.interop.awkward_arrays import from_awkward, to_awkward
from maskgrad.interop.collation import collate_jagged
from maskgrad.interop.dlpack import Exported, from_dlpack, to_dlpack
from maskgrad.interop.named_tensors import from_tensors, to_tensors
from maskgrad.interop.nested_tensors import from_nested, to_nested
from maskgrad.interop.packed_sequences import CuSeqlens, from_packed, to_cu_seqlens, to_packed
from maskgrad.interop.pandas_frames import from_pandas, to_pandas
from maskgrad.interop.polars_frames import from_polars, to_polars
from maskgrad.interop.scipy_matrices import from_scipy, to_scipy
from maskgrad.interop.sequence_lengths import lengths
from maskgrad.interop.token_budget import TokenBudgetSampler
from maskgrad.interop.tokenizers import from_tokenizer
from maskgrad.interop.torch_masked import from_torch_masked, to_torch_masked

arrow_capsules.install()

__all__ = [
    "CuSeqlens",
    "Exported",
    "TokenBudgetSampler",
    "collate_jagged",
    "from_arrow",
    "from_awkward",
    "from_dlpack",
    "from_nested",
    "from_packed",
    "from_pandas",
    "from_polars",
    "from_scipy",
    "from_tensors",
    "from_tokenizer",
    "from_torch_masked",
    "lengths",
    "to_arrow",
    "to_awkward",
    "to_cu_seqlens",
    "to_dlpack",
    "to_nested",
    "to_packed",
    "to_pandas",
    "to_polars",
    "to_scipy",
    "to_tensors",
    "to_torch_masked",
]
