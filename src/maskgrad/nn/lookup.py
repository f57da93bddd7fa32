"""Tables that apply pending updates of rows before these are read.

An optimizer with ``unspecified="zero"`` defers updates of rows without a gradient; they are applied to rows that are
looked up, and to all rows before the table is saved, loaded, copied or converted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from maskgrad.gradients.attached import grad_dtype, replace_gradient, set_grad_dtype
from maskgrad.kernels.kernel import HALVES
from maskgrad.masked_tensor import MaskedTensor
from maskgrad.optim.lazy.rows import bring_up_to_date, lazy_rows_of

__all__ = ["LookupTable", "has_sparse_gradient"]

# Tables for compiled code, which gets tensors without their attributes.
_TABLES: WeakValueDictionary[int, LookupTable] = WeakValueDictionary()
_NUMBERS = itertools.count()


class LookupTable(torch.nn.Module):
    """Base of :class:`~maskgrad.nn.Embedding` and :class:`~maskgrad.nn.EmbeddingBag`."""

    weight: Tensor
    sparse: bool
    max_norm: float | None

    def flush(self) -> None:
        """Apply all pending updates, before the weight is read or written as a whole."""
        bring_up_to_date(self.weight)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, **options: Any) -> Any:
        """Create a table from ``embeddings`` (rows, columns), whose memory it shares; not trained if ``freeze``.

        ``options`` are those of the class.

        Raises:
            ValueError: ``embeddings`` is not two-dimensional.
        """
        if embeddings.dim() != 2:
            raise ValueError(
                f"embeddings must have two dimensions, rows and columns; got shape {tuple(embeddings.shape)}"
            )
        table: Any = cls(*embeddings.shape, _weight=embeddings, **options)
        table.weight.requires_grad = not freeze
        return table

    def _register(self) -> None:
        self._number = next(_NUMBERS)
        _TABLES[self._number] = self
        self._gather_wide()

    def _gather_wide(self) -> None:
        """Accumulate sparse half-precision gradients in float32: PyTorch cannot add two of them on CPUs."""
        weight = self.weight
        if not (self.sparse and weight.is_leaf and weight.grad is None and grad_dtype(weight) is not None):
            return
        if weight.dtype in HALVES and weight.device.type == "cpu":
            set_grad_dtype(weight, torch.float32)
        elif grad_dtype(weight) is torch.float32:  # it was in half precision before
            set_grad_dtype(weight, weight.dtype)

    def _ready(self, rows: Tensor) -> Tensor:
        """Update ``rows`` before they are looked up. In a compiled graph this is one opaque operator."""
        if self.sparse and self.weight.requires_grad and not has_sparse_tensors(self.weight.device):
            raise RuntimeError(
                f"{type(self).__name__} on an XLA device has a sparse gradient, but PyTorch/XLA has no sparse tensors; "
                f"make the gradient dense: write mg.nn.{type(self).__name__}(..., sparse=False)"
            )
        if isinstance(rows, MaskedTensor):  # masked values need not be valid rows
            stored = rows.filled(0) if rows.layout is torch.strided else rows._values
            return MaskedTensor(self._ready(stored), rows._pattern)
        if torch.compiler.is_compiling():
            if torch.compiler.is_exporting():
                return rows
            return torch.ops.maskgrad.ready_rows(rows, self._number)  # type: ignore[no-any-return]
        if self.weight.dtype in HALVES:
            self._gather_wide()
        if lazy_rows_of(self.weight) is not None:
            if torch._C._functorch.is_functorch_wrapped_tensor(rows):
                bring_up_to_date(self.weight)
            else:
                bring_up_to_date(self.weight, rows)
        return rows

    def _looked_up(self) -> None:
        """After a lookup that renormalized rows (``max_norm``): record that the weight was not loaded."""
        if self.max_norm is not None and not torch.compiler.is_compiling():
            lazy = lazy_rows_of(self.weight)
            if lazy is not None:
                lazy.version = self.weight._version

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        result = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # the dtype of an existing gradient cannot change
        gradient, self.weight.grad = self.weight.grad, None
        self._gather_wide()
        if gradient is not None:
            replace_gradient(self.weight, gradient.to(grad_dtype(self.weight) or gradient.dtype))
        return result

    def __getstate__(self) -> dict[str, Any]:
        """State for ``pickle`` and ``copy``, without pending updates."""
        self.flush()
        return {name: value for name, value in self.__dict__.items() if name != "_number"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._register()


def has_sparse_tensors(device: torch.device) -> bool:
    """Whether PyTorch has sparse tensors on this device."""
    return device.type != "xla"


def has_sparse_gradient(sparse: bool | None, reason: str | None) -> bool:
    """Return whether the gradient is a COO tensor; ``reason``: why it cannot be sparse, if any.

    Raises:
        ValueError: ``sparse=True`` cannot be combined with ``reason``.
    """
    if sparse and reason is not None:
        raise ValueError(
            f"sparse=True is not available with {reason}: PyTorch has no such gradient; use sparse=False"
        )
    return reason is None if sparse is None else sparse


def _ready_rows(rows: Tensor, number: int) -> Tensor:
    table = _TABLES.get(number)
    if table is not None:
        bring_up_to_date(table.weight, rows)
    return rows.clone()  # an operator must not return an input


# The weight is no argument: PyTorch need not know that it is written to, as its value does not change.
# This runs before the lookup, which uses the rows returned here.
torch.library.define("maskgrad::ready_rows", "(Tensor rows, SymInt number) -> Tensor")
torch.library.impl("maskgrad::ready_rows", "default", _ready_rows)
torch.library.register_fake("maskgrad::ready_rows", lambda rows, _: torch.empty_like(rows))
