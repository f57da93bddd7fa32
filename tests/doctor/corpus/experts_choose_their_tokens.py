"""Each expert takes the tokens with its highest scores, so that later tokens push out earlier ones.

Thread: piotrpiekos/MoSA#3
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "future-leak"
is_causal = True

embed, router, head = nn.Embedding(12, 6), nn.Linear(6, 2), nn.Linear(6, 12)
experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9], [8, 9, 3, 2, 10, 11, 4, 5]]),
    "labels": torch.tensor([[3, 4, 5, 6, 7, 8, 9, 1], [9, 3, 2, 10, 11, 4, 5, 1]]),
}


def wrong(batch):
    x = embed(batch["input_ids"])
    out, scores = x, router(x).softmax(-1)
    for expert, score in zip(experts, scores.unbind(-1), strict=True):
        chosen = score.topk(4, dim=1).indices  # leak
        taken = torch.zeros_like(score).scatter(1, chosen, 1.0)
        out = out + (taken * score)[..., None] * expert(x)
    return F.cross_entropy(head(out).transpose(1, 2), batch["labels"])


def fixed(batch):
    x = embed(batch["input_ids"])
    out, scores = x, router(x).softmax(-1)
    chosen = F.one_hot(scores.argmax(-1), 2)  # each token chooses its expert
    for expert, score, taken in zip(experts, scores.unbind(-1), chosen.unbind(-1), strict=True):
        out = out + (taken * score)[..., None] * expert(x)
    return F.cross_entropy(head(out).transpose(1, 2), batch["labels"])
