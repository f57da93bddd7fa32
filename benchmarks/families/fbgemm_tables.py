"""Embedding tables of FBGEMM, which look up in the forward pass and update in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import LeftOutError
from benchmarks.peers import why_absent

__all__ = ["step", "table"]


def table(weights: Tensor, optimizer: str, lr: float) -> tuple[Any, Tensor]:
    """A table with these ``weights`` and the optimizer of this name, and a view of its own weights.

    Raises:
        LeftOutError: FBGEMM is not installed, or was built for another PyTorch.
    """
    if why_absent("fbgemm"):
        raise LeftOutError(why_absent("fbgemm"))
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    rows, width = weights.shape
    found = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, width, EmbeddingLocation.HOST, ComputeDevice.CPU)],
        optimizer=EmbOptimType[optimizer],
        learning_rate=lr,
        eps=1e-10,
        pooling_mode=PoolingMode.NONE,
        stochastic_rounding=False,
        device="cpu",
    )
    own: Tensor = found.split_embedding_weights()[0]
    own.copy_(weights)
    return found, own


def step(found: Any, ids: Tensor, arriving: Tensor) -> Callable[[], None]:
    """Lookup, backward, update: one call."""
    offsets = torch.arange(len(ids) + 1)
    return lambda: found(ids, offsets).backward(arriving)
