"""Entries of the operator database that do not apply to masked tensors, with the reasons."""

from __future__ import annotations

__all__ = ["OUTSIDE", "OUTSIDE_BY_NAME"]

#: Excluded entries by the beginning of their name, each with its reason.
OUTSIDE = {
    "as_strided-partial_views": "its samples read storage outside their operand, which a mask cannot describe",
    "item": "gives a Python number; MaskedTensor.item is written by hand and has its own tests",
    "masked.": "torch.masked takes masks of its own and plain tensors; maskgrad.functional has these names",
    "jiterator_": "compiled by the test itself, for CUDA only",
    "sparse.": "takes PyTorch's own sparse tensors, whose stored entries are no mask",
    "to_sparse": "makes a tensor of another layout, which the tests of the storage layouts compare",
    "torch._": "an internal operator, which torch's public functions call",
    "torch.ops.aten.": "an internal operator, which torch's public functions call",
    "_": "an internal operator, which torch's public functions call",
    "signal.windows.": "makes a tensor from numbers; there is nothing to be masked",
    "arange": "makes a tensor from numbers; there is nothing to be masked",
    "linspace": "makes a tensor from numbers; there is nothing to be masked",
    "logspace": "makes a tensor from numbers; there is nothing to be masked",
    "scalar_tensor": "makes a tensor from numbers; there is nothing to be masked",
    "tril_indices": "makes a tensor from numbers; there is nothing to be masked",
    "triu_indices": "makes a tensor from numbers; there is nothing to be masked",
    "broadcast_shapes": "takes shapes; there is nothing to be masked",
}
#: … and those whose whole name decides.
OUTSIDE_BY_NAME = dict.fromkeys(
    ("empty", "empty_strided", "empty_permuted", "eye", "full", "ones", "zeros", "randn", "randint"),
    "makes a tensor from numbers; there is nothing to be masked",
)
