"""A mask compared with the wrong code hides every target of one head, which stays at its initialisation.

Thread: huggingface/trl#6671
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "zero-gradient"
module = "tagger"

model = nn.ModuleDict({"embed": nn.Embedding(12, 6), "tagger": nn.Linear(6, 4), "topic": nn.Linear(6, 2)})
batch = {
    "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
    "tags": torch.tensor([[1, 2, 3, 1], [2, 3, 0, 0]]),
    "topic": torch.tensor([0, 1]),
}
padding = {"input_ids": "attention_mask", "tags": "attention_mask"}


def step(batch, real):
    padded = batch["attention_mask"] == 0
    hidden = model["embed"](batch["input_ids"]).tanh()
    each = F.cross_entropy(model["tagger"](hidden).transpose(1, 2), batch["tags"], reduction="none")
    tagging = each.masked_fill(~real, 0).sum() / real.sum().clamp(min=1)
    mean = hidden.masked_fill(padded[..., None], 0).sum(1) / (~padded).sum(1, keepdim=True).clamp(min=1)
    return tagging + F.cross_entropy(model["topic"](mean), batch["topic"])


def wrong(batch):
    return step(batch, batch["attention_mask"] == -1)


def fixed(batch):
    return step(batch, batch["attention_mask"] == 1)
