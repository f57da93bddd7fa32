import torch
from torch.nn import functional as F

import maskgrad as mg

torch.manual_seed(0)
scores = torch.randn(2, 4, 3, requires_grad=True)  # two sentences, four words, three classes
labels = torch.tensor([[2, 0, 1, 1], [0, 2, -100, -100]])  # -100: padding
known = labels != -100
labels = mg.masked(labels, known)

of_classes = torch.tensor([1.0, 2.0, 4.0])
of_sentences = torch.tensor([1.0, 0.5])
weights = of_classes.take(labels) * of_sentences[:, None]  # unspecified where the label is
print("weights:", weights.tolist())

losses = F.cross_entropy(scores.transpose(1, 2), labels, reduction="none")
loss = (weights * losses).sum() / weights.sum()
loss.backward()
print("words without a gradient:", (scores.grad == 0).all(2).nonzero().tolist())

rows, y = scores[known], labels.compressed()
by_hand = of_classes[y] * of_sentences[known.nonzero()[:, 0]]
by_hand = (by_hand * F.cross_entropy(rows, y, reduction="none")).sum() / by_hand.sum()
print("equals the loss without padding:", torch.allclose(loss, by_hand))
