"""What is not tested, and why: entries, dtypes, forms."""

from __future__ import annotations

import torch

__all__ = ["NOT_AS", "NOT_IN", "OUTSIDE", "OUTSIDE_BY_NAME"]

#: Entries that no record could serve, by the beginning of their name, each with its reason.
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

#: What is not tested in which forms, each with its reason.
NOT_AS: dict[str, tuple[tuple[str, ...], str]] = {
    **dict.fromkeys(
        ("as_strided", "as_strided_copy", "as_strided_scatter"),
        (("strided", "emptied", "single"), "names places of the storage, which another form has not got"),
    ),
    **dict.fromkeys(
        ("nn.functional.max_unpool2d", "nn.functional.max_unpool3d"),
        (("strided",), "torch's own derivative fails: view size is not compatible"),
    ),
    **dict.fromkeys(
        ("addmv", "index_fill"), (("emptied",), "torch's own derivative fails next to a 0-d operand")
    ),
    "block_diag": (
        ("emptied",),
        "torch's own derivative is wrong next to an empty vector, as gradcheck reports",
    ),
    **dict.fromkeys(
        ("nn.functional.pixel_shuffle", "nn.functional.pixel_unshuffle"),
        (("emptied",), "torch's own derivative fails on an empty batch"),
    ),
    "corrcoef": (("single",), "torch sends NaN back where there is no deviation; we send 0, as decided"),
    "cov": (("single",), "torch sends NaN back where no degree of freedom is left; we send 0, as decided"),
    **dict.fromkeys(
        ("native_batch_norm", "nn.functional.pdist"),
        (("emptied",), "torch's own derivative ends the process"),
    ),
}
