"""The type MaskedTensor, its constructors and its integration into PyTorch."""

from maskgrad.masked_tensor import methods
from maskgrad.masked_tensor.creation import from_lengths, from_nan, from_numpy, masked
from maskgrad.masked_tensor.ranking import ranks
from maskgrad.masked_tensor.sequences import from_offsets, from_sequences
from maskgrad.masked_tensor.storage import from_sparse
from maskgrad.masked_tensor.tensor import MaskedTensor
from maskgrad.masked_tensor.torch_patches import pytrees, table

methods.install()
pytrees.register()
table.apply_all()

__all__ = [
    "MaskedTensor",
    "from_lengths",
    "from_nan",
    "from_numpy",
    "from_offsets",
    "from_sequences",
    "from_sparse",
    "masked",
    "ranks",
]
