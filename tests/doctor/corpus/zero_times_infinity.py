"""The entropy of a policy with forbidden actions: their probability 0 times their log-probability -inf.

Thread: tensorforce/tensorforce#586
"""

import torch
from torch import nn

kind = "nan-under-mask"

policy = nn.Linear(4, 5)
batch = {
    "observation": torch.randn(3, 4),
    "allowed": torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 1, 1, 1, 0]]).bool(),
}


def wrong(batch):
    logits = policy(batch["observation"]).masked_fill(~batch["allowed"], -torch.inf)
    logp = logits.log_softmax(-1)
    entropy = -(logp.exp() * logp)  # leak
    return -entropy.sum(-1).mean()


def fixed(batch):
    logits = policy(batch["observation"]).masked_fill(~batch["allowed"], -1e30)
    logp = logits.log_softmax(-1).masked_fill(~batch["allowed"], 0)
    probability = logits.softmax(-1).masked_fill(~batch["allowed"], 0)
    entropy = -(probability * logp)
    return -entropy.sum(-1).mean()
