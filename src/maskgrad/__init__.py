"""maskgrad: masked and sparse gradients for PyTorch, right, complete and fast."""

from typing import TYPE_CHECKING

from maskgrad import amp, errors, functional, interop, nn, optim, sparse
from maskgrad.errors import (
    MaskgradError,
    MissingDependencyError,
    UndefinedOnMaskedError,
    UnspecifiedValueError,
    UnsupportedOperationError,
)
from maskgrad.gradients import clip_grad_norm_, clip_grad_value_, grad_norm
from maskgrad.interop import (
    from_arrow,
    from_nested,
    from_pandas,
    from_polars,
    from_scipy,
    from_torch_masked,
)
from maskgrad.kernels import kernels_in_use, use_kernels
from maskgrad.masked_tensor import MaskedTensor, from_lengths, from_nan, from_numpy, from_sparse, masked
from maskgrad.optim import attach_gradient, train_only
from maskgrad.semantics.indexing import UNSPECIFIED as unspecified  # noqa: N811  (a value, like None)

if TYPE_CHECKING:
    from maskgrad import plot

__version__ = "0.1.0"

__all__ = [
    "MaskedTensor",
    "MaskgradError",
    "MissingDependencyError",
    "UndefinedOnMaskedError",
    "UnspecifiedValueError",
    "UnsupportedOperationError",
    "amp",
    "attach_gradient",
    "clip_grad_norm_",
    "clip_grad_value_",
    "errors",
    "from_arrow",
    "from_lengths",
    "from_nan",
    "from_nested",
    "from_numpy",
    "from_pandas",
    "from_polars",
    "from_scipy",
    "from_sparse",
    "from_torch_masked",
    "functional",
    "grad_norm",
    "interop",
    "kernels_in_use",
    "masked",
    "nn",
    "optim",
    "plot",
    "sparse",
    "train_only",
    "unspecified",
    "use_kernels",
]


def __getattr__(name: str) -> object:
    # matplotlib is imported by those who draw
    if name == "plot":
        import importlib

        return importlib.import_module("maskgrad.plot")
    raise AttributeError(f"module 'maskgrad' has no attribute {name!r}")
