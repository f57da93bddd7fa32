"""The type, its constructors and its place among PyTorch's functions."""

from maskgrad.masked_tensor import (
    autograd,
    batching,
    foreign_functions,
    function_transforms,
    methods,
    module_hooks,
    old_module_hooks,
    pytree,
    storage,
    tracing,
)
from maskgrad.masked_tensor.creation import from_lengths, from_nan, from_numpy, masked
from maskgrad.masked_tensor.storage import from_sparse
from maskgrad.masked_tensor.tensor import MaskedTensor

storage.install()
methods.install()
autograd.install()
pytree.install()
batching.install()
tracing.install()
module_hooks.install()
old_module_hooks.install()
foreign_functions.install()
function_transforms.install()

__all__ = ["MaskedTensor", "from_lengths", "from_nan", "from_numpy", "from_sparse", "masked"]
