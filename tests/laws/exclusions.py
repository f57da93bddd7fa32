"""Dtypes and forms in which an entry is not tested, and why."""

from __future__ import annotations

import torch

__all__ = ["NOT_AS", "NOT_IN"]

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
