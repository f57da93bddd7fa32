"""The backward direction of a bidirectional network gets the flipped batch, so it starts with padding.

Thread: pytorch/pytorch#1811
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

embed, backward_rnn, head = nn.Embedding(10, 4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 5)
batch = {
    "words": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 2, 3, 0]]),
    "lengths": torch.tensor([4, 2, 3]),
    "tags": torch.tensor([[1, 2, 3, 4], [2, 3, -100, -100], [1, 0, 4, -100]]),
}
padding = {"words": torch.arange(4) < batch["lengths"][:, None]}


def wrong(batch):
    reverse = embed(batch["words"]).flip(1)
    outputs, _ = backward_rnn(reverse)  # leak
    return F.cross_entropy(head(outputs.flip(1)).transpose(1, 2), batch["tags"])


def fixed(batch):
    words, lengths = batch["words"], batch["lengths"]
    time = torch.arange(words.size(1))
    within = (lengths[:, None] - 1 - time).clamp(min=0)  # each row is turned round within its own length
    outputs, _ = backward_rnn(embed(words.gather(1, within)))
    back = outputs.gather(1, within[..., None].expand_as(outputs))
    return F.cross_entropy(head(back).transpose(1, 2), batch["tags"])
