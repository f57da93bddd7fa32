"""Entries of the operator database that do not apply to masked tensors, with the reasons."""

from __future__ import annotations

__all__ = ["OUTSIDE", "OUTSIDE_BY_NAME"]

#: Excluded entries by the beginning of their name, each with its reason.
OUTSIDE = {
    "as_strided-partial_views": "its samples read memory outside their operand, which has no mask",
    "item": "returns a Python number; MaskedTensor.item has its own tests",
    "masked.": "torch.masked takes plain tensors and masks; maskgrad.functional has these names",
    "jiterator_": "compiled by the test, for CUDA only",
    "sparse.": "takes PyTorch's own sparse tensors, whose stored entries are not a mask",
    "to_sparse": "converts the layout, covered by the tests of storage layouts",
    "torch._": "an internal operator, called by torch's public functions",
    "torch.ops.aten.": "an internal operator, called by torch's public functions",
    "_": "an internal operator, called by torch's public functions",
    "signal.windows.": "creates a tensor from scalars",
    "arange": "creates a tensor from scalars",
    "linspace": "creates a tensor from scalars",
    "logspace": "creates a tensor from scalars",
    "scalar_tensor": "creates a tensor from scalars",
    "tril_indices": "creates a tensor from scalars",
    "triu_indices": "creates a tensor from scalars",
    "broadcast_shapes": "takes shapes",
}
#: … and those whose whole name decides.
OUTSIDE_BY_NAME = dict.fromkeys(
    ("empty", "empty_strided", "empty_permuted", "eye", "full", "ones", "zeros", "randn", "randint"),
    "creates a tensor from scalars",
)
