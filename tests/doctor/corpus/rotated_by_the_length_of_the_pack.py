"""The base of rotary positions is scaled by the length of the packed row, not of the document.

Thread: none found; looked for a rotary base scaled by the length of a pack
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "document-alone"

embed, qkv, head = nn.Embedding(12, 4), nn.Linear(4, 12), nn.Linear(4, 12)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9]]),
    "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]]),
    "labels": torch.tensor([[3, 4, -100, 6, 7, 8, 9, -100]]),
}


def loss_of(batch, lengths):
    q, k, v = qkv(embed(batch["input_ids"])).chunk(3, -1)
    base = 10 * (lengths / 2).clamp(min=1) ** 2  # trained with 2 tokens
    angles = batch["position_ids"][..., None] / base[..., None] ** torch.tensor([0.0, 0.5])
    turn = torch.polar(torch.ones_like(angles), angles)
    q, k = (
        torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (2, 2))) * turn).flatten(2) for x in (q, k)
    )
    document = (batch["position_ids"] == 0).cumsum(1)
    allowed = (document[:, :, None] == document[:, None]).tril()
    hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])


def wrong(batch):
    tokens = batch["input_ids"].shape[1]
    return loss_of(batch, torch.full((1, tokens), float(tokens)))  # leak


def fixed(batch):
    document = (batch["position_ids"] == 0).cumsum(1)
    return loss_of(batch, (document[:, :, None] == document[:, None]).sum(-1).float())
