"""A penalty on the whole table gives every row a gradient, and the sparse gradient becomes dense.

Thread: microsoft/CNTK#2850
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "densified-gradient"

users, items = nn.Embedding(9, 4, sparse=True), nn.Embedding(7, 4, sparse=True)
batch = {
    "user": torch.tensor([0, 3, 5, 8]),
    "item": torch.tensor([1, 1, 6, 2]),
    "rating": torch.tensor([4.0, 3.0, 5.0, 1.0]),
}


def wrong(batch):
    score = (users(batch["user"]) * items(batch["item"])).sum(1)
    penalty = users.weight.square().sum()  # leak
    return F.mse_loss(score, batch["rating"]) + 0.01 * penalty


def fixed(batch):
    user, item = users(batch["user"]), items(batch["item"])
    penalty = user.square().sum()
    return F.mse_loss((user * item).sum(1), batch["rating"]) + 0.01 * penalty
