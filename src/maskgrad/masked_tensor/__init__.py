"""The type, its constructors and its place among PyTorch's functions."""

from maskgrad.masked_tensor import autograd, batching, methods, pytree, tracing
from maskgrad.masked_tensor.creation import from_lengths, from_nan, from_numpy, masked
from maskgrad.masked_tensor.tensor import MaskedTensor

methods.install()
autograd.install()
pytree.install()
batching.install()
tracing.install()

__all__ = ["MaskedTensor", "from_lengths", "from_nan", "from_numpy", "masked"]
