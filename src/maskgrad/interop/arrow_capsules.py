"""Arrow's protocol for arrays in memory, by which polars, pyarrow and others take a vector without being asked to."""

from __future__ import annotations

from typing import Any

from maskgrad.errors import UnsupportedOperationError
from maskgrad.interop.arrow_arrays import to_arrow
from maskgrad.masked_tensor import MaskedTensor

__all__ = ["install"]


def _arrow_c_array(self: MaskedTensor, requested_schema: Any = None) -> Any:
    """A vector with nulls where it is unspecified, ``__arrow_c_array__`` of the Arrow PyCapsule interface."""
    if len(self.shape) != 1:
        raise UnsupportedOperationError(
            "MaskedTensor.__arrow_c_array__",
            f"an Arrow array is a vector, and this has shape {tuple(self.shape)}",
            "Use mg.interop.to_arrow(x), a table of a matrix, or mg.interop.to_polars(x).",
        )
    return to_arrow(self).__arrow_c_array__(requested_schema)


def install() -> None:
    """Give the class the method."""
    MaskedTensor.__arrow_c_array__ = _arrow_c_array  # type: ignore[attr-defined]
