"""The operators of MaskedTensor, as type checkers see them; methods.py puts the real ones on the class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from maskgrad.masked_tensor.tensor import MaskedTensor

__all__ = ["TypedOperators"]


class TypedOperators:
    """Base class without content at run time."""

    __slots__ = ()

    if TYPE_CHECKING:

        def _unary(self) -> MaskedTensor: ...
        def _binary(self, other: Any) -> MaskedTensor: ...
        def _compare(self, other: object) -> MaskedTensor: ...
        def __getitem__(self, index: Any) -> MaskedTensor: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...

        __neg__ = __pos__ = __abs__ = __invert__ = _unary
        __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __matmul__ = _binary
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = __rmatmul__ = (
            _binary
        )
        __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __rand__ = __ror__ = __rxor__ = _binary
        __lt__ = __le__ = __gt__ = __ge__ = _compare
        __eq__ = __ne__ = _compare  # type: ignore[assignment]
