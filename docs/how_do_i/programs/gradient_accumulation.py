import torch
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

torch.manual_seed(0)
model = nn.Linear(4, 5)
x, labels = torch.randn(6, 4), torch.tensor([1, 2, -100, 0, -100, -100])  # -100: padding
F.cross_entropy(model(x), labels).backward()  # the gradient of the whole batch
expected = model.weight.grad.clone()

model.zero_grad()
for part, y in zip(x.split(2), labels.split(2), strict=True):  # 2, 1 and 0 labels
    (F.cross_entropy(model(part), y) / 3).backward()
print("mean of means:", torch.allclose(model.weight.grad, expected, atol=1e-6))

model.zero_grad()
accumulator = mg.GradientAccumulator(model)
for part, y in zip(x.split(2), labels.split(2), strict=True):
    losses = F.cross_entropy(model(part), mg.masked(y, y != -100), reduction="none")
    accumulator.backward(losses)
loss = accumulator.finish()
print("accumulator:", torch.allclose(model.weight.grad, expected, atol=1e-6))
print("its loss is that of the batch:", torch.allclose(loss, F.cross_entropy(model(x), labels)))
