import torch
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

torch.manual_seed(0)
critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
x = torch.randn(6, 3)
target = torch.randn(6, 1)
target[0] = float("nan")

parameters = list(critic.parameters())
loss = F.mse_loss(critic(x), mg.from_nan(target))
penalty = mg.gradient_penalty(loss, parameters)
(loss + 0.1 * penalty).backward()
print("gradient is finite:", bool(critic[0].weight.grad.isfinite().all()))

# By hand: create_graph=True keeps the graph of the gradient.
loss = F.mse_loss(critic(x[1:]), target[1:])
gradients = torch.autograd.grad(loss, parameters, create_graph=True)
by_hand = torch.cat([gradient.flatten() for gradient in gradients]).norm()
print("the square of the norm:", torch.allclose(penalty, by_hand**2))

# A penalty for each sample's gradient with respect to its input, as in WGAN-GP.
x.requires_grad_()
per_sample = mg.batched_grad(critic(x).squeeze(1), x, create_graph=True)
print(per_sample.shape, ((per_sample.norm(dim=1) - 1) ** 2).mean().requires_grad)
