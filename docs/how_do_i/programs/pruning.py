import torch
from torch import nn

import maskgrad as mg

torch.manual_seed(0)
layer = nn.Linear(8, 8)
optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.1)
x = torch.randn(16, 8)


def step():
    optimizer.zero_grad()
    (layer(x) - x).square().mean().backward()
    optimizer.step()


step()  # momentum builds up for all weights
size = layer.weight.detach().abs()
kept = size >= size.median()
with torch.no_grad():
    layer.weight[~kept] = 0.0
mg.train_only(layer.weight, kept)
before = layer.weight.detach().clone()
for _ in range(5):
    step()
print("pruned weights are zero:", bool((layer.weight[~kept] == 0).all()))
print("the others have moved:", bool((layer.weight != before)[kept].all()))
