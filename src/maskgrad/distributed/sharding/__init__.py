"""Tables of rows that are spread over the memories of several processes."""

from __future__ import annotations

from maskgrad.distributed.sharding.checkpoint import load_checkpoint, save_checkpoint
from maskgrad.distributed.sharding.clipping import clip_grad_norm_
from maskgrad.distributed.sharding.collection import ShardedTables, spread_tables
from maskgrad.distributed.sharding.embedding import ShardedEmbedding
from maskgrad.distributed.sharding.embedding_bag import ShardedEmbeddingBag
from maskgrad.distributed.sharding.shards import is_sharded
from maskgrad.distributed.sharding.state_dicts import load_optimizer_state_dict, optimizer_state_dict

__all__ = [
    "ShardedEmbedding",
    "ShardedEmbeddingBag",
    "ShardedTables",
    "clip_grad_norm_",
    "is_sharded",
    "load_checkpoint",
    "load_optimizer_state_dict",
    "optimizer_state_dict",
    "save_checkpoint",
    "spread_tables",
]
