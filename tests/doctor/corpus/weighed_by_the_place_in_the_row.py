"""A mean weights later tokens more, with positions from the start of the row, not of the document.

Thread: none found; weighted mean pooling by position in packed or padding-free batches, position weights not reset
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "document-alone"

embed, head = nn.Embedding(12, 6), nn.Linear(6, 3)
batch = {
    "input_ids": torch.tensor([2, 3, 4, 5, 6, 7, 8, 9, 10]),
    "cu_seqlens": torch.tensor([0, 3, 7, 9], dtype=torch.int32),
    "labels": torch.tensor([1, 0, 2]),
}


def loss_of(batch, weights):
    hidden, sizes = embed(batch["input_ids"]), batch["cu_seqlens"].diff().tolist()
    parts = zip(hidden.split(sizes), weights.split(sizes), strict=True)
    means = [weight @ part / weight.sum() for part, weight in parts]
    return F.cross_entropy(head(torch.stack(means)), batch["labels"])


def wrong(batch):
    weights = torch.arange(1.0, 1 + len(batch["input_ids"]))  # leak
    return loss_of(batch, weights)


def fixed(batch):
    sizes = batch["cu_seqlens"].diff().tolist()
    weights = torch.cat([torch.arange(1.0, 1 + size) for size in sizes])
    return loss_of(batch, weights)
