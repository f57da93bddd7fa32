"""maskgrad: masked and sparse gradients for PyTorch, right, complete and fast."""

from typing import TYPE_CHECKING

from maskgrad import amp, errors, functional, interop, nn, optim, sparse
from maskgrad.compilation import assert_no_recompile, count_recompiles
from maskgrad.errors import (
    CoupledSamplesError,
    MaskgradError,
    MissingDependencyError,
    UndefinedOnMaskedError,
    UnspecifiedValueError,
    UnsupportedOperationError,
)
from maskgrad.gradients import (
    Function,
    batched_grad,
    batched_hessian,
    batched_jvp,
    batched_vjp,
    clip_grad_norm_,
    clip_grad_value_,
    clipped_backward,
    find_coupling,
    grad_norm,
    gradcheck,
    gradgradcheck,
    gradient_penalty,
    mask_gradient,
    per_sample_grad,
    per_sample_grad_norms,
    reverse_gradient,
)
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
    "CoupledSamplesError",
    "Function",
    "MaskedTensor",
    "MaskgradError",
    "MissingDependencyError",
    "UndefinedOnMaskedError",
    "UnspecifiedValueError",
    "UnsupportedOperationError",
    "amp",
    "assert_no_recompile",
    "attach_gradient",
    "batched_grad",
    "batched_hessian",
    "batched_jvp",
    "batched_vjp",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clipped_backward",
    "count_recompiles",
    "errors",
    "find_coupling",
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
    "gradcheck",
    "gradgradcheck",
    "gradient_penalty",
    "interop",
    "kernels_in_use",
    "mask_gradient",
    "masked",
    "nn",
    "optim",
    "per_sample_grad",
    "per_sample_grad_norms",
    "plot",
    "reverse_gradient",
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
