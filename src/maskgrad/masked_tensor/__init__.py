"""The type MaskedTensor, its constructors and its integration into PyTorch."""

import sys
import types

from maskgrad.masked_tensor import methods
from maskgrad.masked_tensor.creation import from_lengths, from_nan, from_numpy, masked
from maskgrad.masked_tensor.ranking import ranks
from maskgrad.masked_tensor.sequences import from_offsets, from_sequences
from maskgrad.masked_tensor.storage import from_sparse
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches import pytrees, table


class _Package(types.ModuleType):
    """This package, which has the name of ``torch.masked.masked_tensor``, a function."""

    def __call__(self, *_: object, **__: object) -> None:
        raise TypeError("mg.masked_tensor is a package; write mg.masked(data, mask)")


sys.modules[__name__].__class__ = _Package
methods.install()
pytrees.register()
table.apply_all()

__all__ = [
    "MaskedTensor", "from_lengths", "from_nan", "from_numpy", "from_offsets", "from_sequences",
    "from_sparse", "masked", "ranks",
]  # fmt: skip
