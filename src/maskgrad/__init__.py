"""maskgrad: masked and sparse gradients for PyTorch, right, complete and fast."""

from maskgrad import errors, functional
from maskgrad.errors import (
    MaskgradError,
    MissingDependencyError,
    UndefinedOnMaskedError,
    UnspecifiedValueError,
    UnsupportedOperationError,
)
from maskgrad.masked_tensor import MaskedTensor, from_lengths, from_nan, from_numpy, masked
from maskgrad.semantics.indexing import UNSPECIFIED as unspecified  # noqa: N811  (a value, like None)

__version__ = "0.1.0"

__all__ = [
    "MaskedTensor",
    "MaskgradError",
    "MissingDependencyError",
    "UndefinedOnMaskedError",
    "UnspecifiedValueError",
    "UnsupportedOperationError",
    "errors",
    "from_lengths",
    "from_nan",
    "from_numpy",
    "functional",
    "masked",
    "unspecified",
]
