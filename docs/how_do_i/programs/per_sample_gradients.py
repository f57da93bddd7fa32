import torch
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
x, labels = torch.randn(5, 4), torch.tensor([0, 2, 1, 1, 0])

gradients = mg.per_sample_grad(model, F.cross_entropy, x, labels)
print({name: tuple(gradient.shape) for name, gradient in gradients.items()})

# By hand: a backward pass for each sample.
F.cross_entropy(model(x[3:4]), labels[3:4]).backward()
print("sample 3 by hand:", torch.allclose(gradients["0.weight"][3], model[0].weight.grad, atol=1e-6))

norms = mg.per_sample_grad_norms(model, F.cross_entropy, x, labels)
together = torch.cat([gradient.flatten(1) for gradient in gradients.values()], 1)
print("norms:", torch.allclose(norms, together.norm(dim=1)))

model.zero_grad()
mg.clipped_backward(model, F.cross_entropy, x, labels, max_norm=0.5, reduction="sum")
clipped = together * (0.5 / together.norm(dim=1, keepdim=True)).clamp(max=1)
print("clipped sum:", torch.allclose(model[2].bias.grad, clipped.sum(0)[-3:], atol=1e-5))
