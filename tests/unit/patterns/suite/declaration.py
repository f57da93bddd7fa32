"""What a layout declares, and the examples that the tests make of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.masked_tensor import MaskedTensor
from tests.poison import inf, nan

__all__ = ["OTHERS", "Declaration", "Example", "Parts", "assert_same"]

Parts = tuple[Any, Any, Any]
#: What a layout is converted to, and meets: its name, and how it is asked for.
OTHERS: dict[str, dict[str, Any]] = {
    "strided": {"layout": torch.strided},
    "coo": {"layout": torch.sparse_coo},
    "csr": {"layout": torch.sparse_csr},
    "csc": {"layout": torch.sparse_csc},
    "bsr": {"layout": torch.sparse_bsr, "blocksize": (1, 1)},
    "bsc": {"layout": torch.sparse_bsc, "blocksize": (1, 1)},
    "jagged": {"layout": torch.jagged},
}
GARBAGE = (nan, inf, -inf, 1e38)


class Example(NamedTuple):
    """A tensor on the layout, and what it was made of.

    Attributes:
        x: the tensor.
        data: plain values, with garbage under the mask; a leaf.
        mask: of the whole shape.
    """

    x: MaskedTensor
    data: Tensor
    mask: Tensor


class Declaration:
    """What a layout declares.

    Attributes:
        layout: its name.
        masks: patterns that it can hold, by names; "some" must specify part of a matrix.
        options: arguments of ``to_sparse`` beside the layout.
        dense: how many dimensions of the masks are stored whole, the last ones.
        refused: what it cannot hold: the call, the kind of error, and its words.
        damages: from the parts of the tensor called "some" to parts that contradict each other, and the words of the
            refusal.
        is_torchs: whether torch has sparse tensors of this layout.
        reads: the methods that read its tensors, if it is torch's.
        turned: the layout of its transpose, if not the same.
        is_written: whether entries can be assigned to, and become specified by that.
        is_filed: whether files are checked, and so accepted.
    """

    layout: ClassVar[torch.layout]
    masks: ClassVar[Mapping[str, Tensor]]
    options: ClassVar[Mapping[str, Any]] = {}
    dense: ClassVar[int] = 0
    refused: ClassVar[Mapping[str, tuple[Callable[[], Any], type[Exception], str]]] = {}
    damages: ClassVar[Mapping[str, tuple[Callable[..., Parts], str]]] = {}
    is_torchs: ClassVar[bool] = False
    reads: ClassVar[tuple[str, ...]] = ()
    turned: ClassVar[torch.layout | None] = None
    is_written: ClassVar[bool] = False
    is_filed: ClassVar[bool] = True

    def made(self, data: Tensor, mask: Tensor) -> MaskedTensor:
        """Put plain values on the layout."""
        x = mg.masked(data, mask)
        return x if self.layout == torch.strided else x.to_sparse(layout=self.layout, **self.options)

    def twin(self, mask: Tensor) -> Tensor:
        """Another pattern with the same number of entries, of the same sizes."""
        return mask.flip(0)

    def of(self, name: str, dtype: torch.dtype = torch.float64, twin: bool = False) -> Example:
        """The example of a mask: numbers of both signs, a zero among those that are specified, garbage under it."""
        mask = self.twin(self.masks[name]) if twin else self.masks[name]
        numbers = torch.linspace(-2, 2, mask.numel(), dtype=torch.float64).reshape(mask.shape)
        if mask.any():
            numbers[tuple(mask.nonzero()[0])] = 0.0
        inexact = dtype.is_floating_point or dtype.is_complex
        garbage = torch.tensor(
            list(itertools.islice(itertools.cycle(GARBAGE if inexact else (77,)), mask.numel()))
        )
        data = torch.where(mask, numbers, garbage.double().reshape(mask.shape)).to(dtype)
        data.requires_grad_(inexact)
        return Example(self.made(data, mask), data, mask)

    def known(self, mask: Tensor) -> Tensor:
        """The mask without the dimensions that are stored whole."""
        return mask[(..., *(0,) * self.dense)]


def assert_same(found: Any, values: Tensor, mask: Tensor) -> None:
    """The mask first, then the specified numbers; a plain tensor where everything is known."""
    assert isinstance(found, MaskedTensor)
    assert found.shape == values.shape == mask.shape
    assert found.dtype == values.dtype
    assert torch.equal(found.mask, mask)
    torch.testing.assert_close(found.filled(0), torch.where(mask, values, 0), equal_nan=False)
