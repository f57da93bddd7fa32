"""Forms in which an entry is not tested, and why; forms in which torch accepts no sample of it."""

from __future__ import annotations

__all__ = ["NOT_AS", "WITHOUT_SAMPLES"]

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

#: By form, the ids of the entries of which torch accepts no sample. Found by trying: an entry that is missing here
#: fails in ``laws.cases``, which wants a sample for every test.
WITHOUT_SAMPLES: dict[str, frozenset[str]] = {
    form: frozenset(ids.split())
    for form, ids in {
        "emptied": """
            gradient index_put nn.functional.conv3d nn.functional.ctc_loss nn.functional.embedding
            nn.functional.embedding_bag tensordot
        """,
        "single": """
            addbmm addmv addr baddbmm bincount bmm bmm-triton_optimized bucketize cartesian_prod cdist
            chunk combinations cross cumulative_trapezoid diag diag_embed diagonal diagonal_copy
            diagonal_scatter diff dot dsplit einsum fft.fftshift fft.ifftshift grid_sampler_2d
            grid_sampler_3d histogramdd hsplit index_put linalg.cross linalg.diagonal linalg.matrix_norm
            movedim multinomial mv narrow narrow_copy native_batch_norm native_group_norm
            nn.functional.adaptive_avg_pool2d nn.functional.adaptive_max_pool1d
            nn.functional.adaptive_max_pool2d nn.functional.adaptive_max_pool3d nn.functional.avg_pool2d
            nn.functional.bilinear nn.functional.channel_shuffle nn.functional.conv1d
            nn.functional.conv2d nn.functional.conv3d nn.functional.conv_transpose1d
            nn.functional.conv_transpose2d nn.functional.conv_transpose3d
            nn.functional.cosine_embedding_loss nn.functional.cross_entropy nn.functional.ctc_loss
            nn.functional.dropout2d nn.functional.dropout3d nn.functional.embedding
            nn.functional.embedding_bag nn.functional.fractional_max_pool2d nn.functional.grid_sample
            nn.functional.group_norm nn.functional.instance_norm nn.functional.interpolate-area
            nn.functional.interpolate-bicubic nn.functional.interpolate-bilinear
            nn.functional.interpolate-linear nn.functional.interpolate-nearest
            nn.functional.interpolate-nearest-exact nn.functional.interpolate-trilinear
            nn.functional.layer_norm nn.functional.linear nn.functional.linear_cross_entropy
            nn.functional.linear_cross_entropy-chunked nn.functional.linear_cross_entropy-chunked_none
            nn.functional.max_pool1d nn.functional.max_pool2d nn.functional.max_pool3d
            nn.functional.max_unpool1d nn.functional.max_unpool1d-grad nn.functional.max_unpool2d
            nn.functional.max_unpool2d-grad nn.functional.max_unpool3d nn.functional.max_unpool3d-grad
            nn.functional.multi_head_attention_forward nn.functional.multilabel_soft_margin_loss
            nn.functional.nll_loss nn.functional.pad-replicate_negative nn.functional.pdist
            nn.functional.rms_norm nn.functional.scaled_dot_product_attention
            nn.functional.upsample_bilinear nn.functional.upsample_nearest outer renorm rot90 select
            select_scatter slice slice_scatter split split-list_args split_with_sizes
            split_with_sizes_copy tensor_split tensordot trace trapezoid trapz tril triu unsafe_chunk
            unsafe_split vdot view_as_complex vsplit
        """,
        "strided": "view_as_complex",
    }.items()
}
