"""Entries of the operator database that do not apply to masked tensors, or not in a dtype, with the reasons."""

from __future__ import annotations

import torch

__all__ = ["NOT_ASKED", "NOT_IN", "OUTSIDE", "OUTSIDE_BY_NAME"]

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

#: What is not tested in which dtypes, by the name or family of the operation, each with its reason.
NOT_IN: dict[str, tuple[tuple[torch.dtype, ...], str]] = {
    "logcumsumexp": (
        (torch.float32, torch.complex64, torch.float16, torch.bfloat16),
        "torch's own gradient loses most of its digits",
    ),
    "msort": (
        (torch.bfloat16, torch.bool),
        "every sample has equal entries, of which torch's unstable sort may put either first",
    ),
    "nn.functional.multi_head_attention_forward": (
        (torch.float32, torch.float16, torch.bfloat16),
        "its samples saturate the softmax: gradients are differences of nearly equal numbers, in torch and here",
    ),
    **dict.fromkeys(
        ("nn.functional.grid_sample", "grid_sampler_2d", "grid_sampler_3d"),
        (
            (torch.float16, torch.bfloat16),
            "whether a neighbour has the weight zero depends on how the coordinates are rounded",
        ),
    ),
}
if torch.__version__ < (2, 13):  # whose database has a sample that shows it
    NOT_IN["histc"] = (
        (torch.float16, torch.bfloat16),
        "torch finds the bin of a number in the half itself, which puts some next to an edge on its other side",
    )

#: … and only with --dtype, which has more samples than the tests in other dtypes.
NOT_ASKED: dict[str, tuple[tuple[torch.dtype, ...], str]] = {
    "nn.functional.normalize": (
        (torch.float16, torch.bfloat16),
        "norms overflow, and gradients are differences of nearly equal numbers, in torch and here",
    ),
    "complex": ((torch.float16,), "torch has no masked_scatter for the complex numbers"),
    "msort": ((torch.float16,), NOT_IN["msort"][1]),
}
