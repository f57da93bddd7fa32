"""The decoder masks its own padding but not the encoder's.

Thread: facebookresearch/fairseq#318
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

table = nn.Embedding(10, 8)
encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
decoder = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
head = nn.Linear(8, 10)
batch = {
    "source": torch.tensor([[3, 4, 5, 6, 7, 8], [9, 2, 3, 0, 0, 0], [4, 5, 0, 0, 0, 0]]),
    "source_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [1, 1, 0, 0, 0, 0]]),
    "target": torch.tensor([[1, 3, 4, 5], [1, 6, 7, 2], [1, 8, 9, 3]]),
}


causal = torch.ones(3, 3).triu(1).bool()


def wrong(batch):
    padded = batch["source_mask"] == 0
    memory = encoder(table(batch["source"]), src_key_padding_mask=padded)
    inputs, labels = table(batch["target"][:, :-1]), batch["target"][:, 1:]
    hidden = decoder(inputs, memory, tgt_mask=causal)  # leak
    return F.cross_entropy(head(hidden).transpose(1, 2), labels)


def fixed(batch):
    padded = batch["source_mask"] == 0
    memory = encoder(table(batch["source"]), src_key_padding_mask=padded)
    inputs, labels = table(batch["target"][:, :-1]), batch["target"][:, 1:]
    hidden = decoder(inputs, memory, tgt_mask=causal, memory_key_padding_mask=padded)
    return F.cross_entropy(head(hidden).transpose(1, 2), labels)
