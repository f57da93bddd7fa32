"""Signatures of the tabulated functions, for type checkers."""

from __future__ import annotations

from typing import Protocol, TypeVar

from torch import Tensor

from maskgrad.functional.arguments import Dim, Dtype, Mask

D = TypeVar("D", contravariant=True)


class Reduction(Protocol[D]):
    """Signature of a reduction; ``D``: what ``dim`` may be."""

    def __call__(  # noqa: D102
        self, input: Tensor, dim: D = ..., *, keepdim: bool = ..., dtype: Dtype = ..., mask: Mask = ...
    ) -> Tensor: ...


class Truth(Protocol):
    """Signature of a reduction whose result has a dtype of its own."""

    def __call__(  # noqa: D102
        self, input: Tensor, dim: Dim = ..., *, keepdim: bool = ..., mask: Mask = ...
    ) -> Tensor: ...


class Spread(Protocol):
    """Signature of a variance."""

    def __call__(  # noqa: D102
        self,
        input: Tensor,
        dim: Dim = ...,
        unbiased: bool | None = ...,
        *,
        correction: float | None = ...,
        keepdim: bool = ...,
        dtype: Dtype = ...,
        mask: Mask = ...,
    ) -> Tensor: ...


class Rescaling(Protocol):
    """Signature of a function along one dimension that keeps it."""

    def __call__(  # noqa: D102
        self, input: Tensor, dim: int, *, dtype: Dtype = ..., mask: Mask = ...
    ) -> Tensor: ...
