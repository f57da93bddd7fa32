"""maskgrad: masked and sparse gradients for PyTorch."""

from typing import TYPE_CHECKING

import torch as _torch

import maskgrad.compatibility  # noqa: F401  (first: it refuses a PyTorch that the rest cannot be imported with)
from maskgrad import amp, errors, functional, interop, metrics, nn, optim, sparse
from maskgrad.compilation import assert_no_recompile, count_recompiles
from maskgrad.documents import aggregate, block_mask, pack_documents, unpack_documents
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
    GradientAccumulator,
    batched_grad,
    batched_hessian,
    clip_grad_norm_,
    clip_grad_value_,
    clipped_backward,
    coupled_backward,
    grad_norm,
    gradcheck,
    gradgradcheck,
    gradient_penalty,
    mask_gradient,
    per_sample_grad,
    per_sample_grad_norms,
    reverse_gradient,
)
from maskgrad.gradients.accumulation_ranks import find_ranks_with as _find_ranks_with
from maskgrad.instead import missing_attribute
from maskgrad.interop.from_frames import from_arrow, from_pandas
from maskgrad.interop.nested_tensors import from_nested, from_torch_masked
from maskgrad.interop.scipy_matrices import from_scipy
from maskgrad.kernels import kernels_in_use, use_kernels
from maskgrad.masked_tensor import (
    MaskedTensor,
    from_lengths,
    from_nan,
    from_numpy,
    from_offsets,
    from_sequences,
    from_sparse,
    masked,
    ranks,
)
from maskgrad.masked_tensor.torch_patches.torchscript import refuse_scripts as _refuse_scripts
from maskgrad.metrics.alignment import align
from maskgrad.optim.parameters import attach_gradient, train_only
from maskgrad.semantics.indexing import UNSPECIFIED as unspecified  # noqa: N811  (a value, like None)
from maskgrad.versions import VERSION as _VERSION

if TYPE_CHECKING:
    from maskgrad import distributed, doctor, integrations, plot, testing
    from maskgrad.export import onnx

__version__ = _VERSION

__all__ = [
    "CoupledSamplesError", "Function", "GradientAccumulator", "MaskedTensor", "MaskgradError",
    "MissingDependencyError", "UndefinedOnMaskedError", "UnspecifiedValueError",
    "UnsupportedOperationError", "aggregate", "align", "amp", "assert_no_recompile", "attach_gradient",
    "batched_grad", "batched_hessian", "block_mask", "clip_grad_norm_", "clip_grad_value_",
    "clipped_backward", "count_recompiles", "coupled_backward", "distributed", "doctor", "errors",
    "from_arrow", "from_lengths", "from_nan", "from_nested", "from_numpy", "from_offsets", "from_pandas",
    "from_scipy", "from_sequences", "from_sparse", "from_torch_masked", "functional", "grad_norm",
    "gradcheck", "gradgradcheck", "gradient_penalty", "integrations", "interop", "kernels_in_use",
    "mask_gradient", "masked", "metrics", "nn", "onnx", "optim", "pack_documents", "per_sample_grad",
    "per_sample_grad_norms", "plot", "ranks", "reverse_gradient", "sparse", "testing", "train_only",
    "unpack_documents", "unspecified", "use_kernels",
]  # fmt: skip

# PyTorch finds compiled graphs on disk by the names of operators, whose derivatives in another version are others.
_torch.compiler.config.cache_key_tag += f"maskgrad {__version__}"

_refuse_scripts(globals().get(_name) for _name in __all__)
_refuse_scripts(getattr(_part, _name) for _part in (functional, nn) for _name in _part.__all__)


def _ranks_of(*arguments: object) -> object:
    import importlib

    return importlib.import_module("maskgrad.distributed.accumulation").AccumulatingRanks(*arguments)


_find_ranks_with(_ranks_of)  # type: ignore[arg-type]


def __getattr__(name: str) -> object:
    # matplotlib and torch.distributed are imported on first use only: not everybody needs them
    lazy = {
        "distributed": "maskgrad.distributed",
        "doctor": "maskgrad.doctor",
        "integrations": "maskgrad.integrations",
        "onnx": "maskgrad.export.onnx",
        "plot": "maskgrad.plot",
        "testing": "maskgrad.testing",
    }
    module = lazy.get(name)
    if module is not None:
        import importlib

        return importlib.import_module(module)
    raise missing_attribute(__name__, name)


def __dir__() -> list[str]:
    # Public names only, without modules imported for internal use.
    return sorted([*__all__, "__version__"])
