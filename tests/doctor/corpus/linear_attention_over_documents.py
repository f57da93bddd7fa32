"""The running sums of linear attention continue from one packed document to the next.

Thread: THUDM/slime#1686
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "document-leak"

embed, qkv, head = nn.Embedding(12, 4), nn.Linear(4, 12), nn.Linear(4, 12)
batch = {
    "input_ids": torch.tensor([2, 3, 4, 5, 6, 7, 8, 9, 10]),
    "cu_seqlens": torch.tensor([0, 3, 7, 9], dtype=torch.int32),
    "labels": torch.tensor([3, 4, -100, 6, 7, 8, -100, 10, -100]),
}


def read(q, states, norms):
    return torch.einsum("td,tde->te", q, states) / (q * norms).sum(-1, keepdim=True)


def wrong(batch):
    q, k, v = qkv(embed(batch["input_ids"])).chunk(3, -1)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    states = (k[:, :, None] * v[:, None]).cumsum(0)  # leak
    norms = k.cumsum(0)  # leak
    return F.cross_entropy(head(read(q, states, norms)), batch["labels"])


def fixed(batch):
    q, k, v = qkv(embed(batch["input_ids"])).chunk(3, -1)
    q, k, sizes = F.elu(q) + 1, F.elu(k) + 1, batch["cu_seqlens"].diff().tolist()
    states = torch.cat([part.cumsum(0) for part in (k[:, :, None] * v[:, None]).split(sizes)])
    norms = torch.cat([part.cumsum(0) for part in k.split(sizes)])
    return F.cross_entropy(head(read(q, states, norms)), batch["labels"])
