"""A bidirectional GRU reads all packed sentences as one sequence, with its state from the neighbours on both sides.

Thread: none found; bidirectional GRU or LSTM over concatenated sentences, state not reset at the border
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

kind = "document-leak"

embed, head = nn.Embedding(12, 4), nn.Linear(6, 5)
rnn = nn.GRU(4, 3, batch_first=True, bidirectional=True)
batch = {
    "words": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9, 10]]),
    "sentence": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]]),
    "tag_labels": torch.tensor([[1, 2, 0, 4, 4, -100, 3, 1, 0]]),
}
documents = "sentence"


def wrong(batch):
    outputs, _ = rnn(embed(batch["words"]))  # leak
    return F.cross_entropy(head(outputs).transpose(1, 2), batch["tag_labels"])


def fixed(batch):
    hidden = embed(batch["words"]).squeeze(0)
    sizes = batch["sentence"][0].unique_consecutive(return_counts=True)[1].tolist()
    outputs, _ = rnn(pack_sequence(hidden.split(sizes), enforce_sorted=False))
    tags = head(torch.cat(unpack_sequence(outputs)))
    return F.cross_entropy(tags, batch["tag_labels"].squeeze(0))
