import torch
from torch.nn import functional as F

import maskgrad as mg

torch.manual_seed(0)
scores = torch.randn(6, 3, requires_grad=True)
labels = torch.tensor([0, 2, -1, 1, 1, -1])  # -1: unknown
known = labels >= 0

counts = mg.masked(labels, known).compressed().bincount(minlength=3)
weight = counts.sum() / (3 * counts)  # rare classes count for more
print("weights:", [round(w, 3) for w in weight.tolist()])

loss = F.cross_entropy(scores, mg.masked(labels, known), weight=weight)
by_hand = F.cross_entropy(scores[known], labels[known], weight=weight)
print("equals the loss without unknown labels:", torch.allclose(loss, by_hand))
loss.backward()
print("rows without a gradient:", (scores.grad == 0).all(1).nonzero().flatten().tolist())
