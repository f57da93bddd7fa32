"""Rows with a pending weight decay are read without a flush: the penalty uses stale values.

Thread: pytorch/pytorch#3137, where rows begin to wait for their decay; none found about reading them too early
"""

import torch
import torch.nn.functional as F
from torch import nn

import maskgrad as mg

kind = "stale-rows"

users, items = nn.Embedding(9, 4, sparse=True), nn.Embedding(7, 4, sparse=True)
optimizer = mg.optim.SGD([users.weight, items.weight], lr=0.1, momentum=0.9, unspecified="zero")
batch = {
    "user": torch.tensor([0, 3, 5, 8]),
    "item": torch.tensor([1, 1, 6, 2]),
    "rating": torch.tensor([4.0, 3.0, 5.0, 1.0]),
}

for _ in range(2):  # two steps on some rows leave others, moved by momentum, behind
    (users(torch.tensor([_, 7])) * items(torch.tensor([_ + 2, 5]))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def step(batch):
    user = users.weight[batch["user"]]  # leak
    loss = F.mse_loss((user * items.weight[batch["item"]]).sum(1), batch["rating"])
    loss.backward()
    optimizer.step()
    return loss.detach()


def wrong(batch):
    return step(batch)


def fixed(batch):
    optimizer.flush()
    return step(batch)
