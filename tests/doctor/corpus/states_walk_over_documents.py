"""A recurrent network carries its state from one packed document to the next.

Thread: NovaSky-AI/SkyRL#2056
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "document-leak"

embed, cell, head = nn.Embedding(12, 6), nn.GRUCell(6, 6), nn.Linear(6, 12)
batch = {
    "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9], [4, 8, 9, 3, 2, 10, 11, 5]]),
    "seq_idx": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]]),
    "labels": torch.tensor([[3, 4, -100, 6, 7, 8, 9, -100], [8, 9, 3, 2, -100, 11, 5, -100]]),
}


def wrong(batch):
    state, outputs = torch.zeros(2, 6), []
    for x in embed(batch["input_ids"]).unbind(1):  # leak
        state = cell(x, state)
        outputs.append(state)
    return F.cross_entropy(head(torch.stack(outputs, 1)).transpose(1, 2), batch["labels"])


def fixed(batch):
    state, outputs, seq_idx = torch.zeros(2, 6), [], batch["seq_idx"]
    for place, x in enumerate(embed(batch["input_ids"]).unbind(1)):
        begins = seq_idx[:, place] != seq_idx[:, max(place - 1, 0)]
        state = cell(x, torch.where(begins[:, None], 0.0, state))
        outputs.append(state)
    return F.cross_entropy(head(torch.stack(outputs, 1)).transpose(1, 2), batch["labels"])
