import torch
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

first, second = ("cuda:0", "cuda:1") if torch.cuda.device_count() > 1 else ("cpu", "cpu")
torch.manual_seed(0)
bottom, top = nn.Linear(3, 8).to(first), nn.Linear(8, 1).to(second)
optimizer = mg.optim.AdamW([*bottom.parameters(), *top.parameters()], lr=0.01)

x = torch.randn(16, 3)
x[::4, 0] = float("nan")
target = torch.randn(16, 1)
target[::5] = float("nan")

hidden = bottom(mg.from_nan(x).to(first)).relu()
loss = F.mse_loss(top(hidden.to(second)), mg.from_nan(target).to(second))
loss.backward()
optimizer.step()
print("data and mask moved:", hidden.to(second).mask.device == hidden.to(second).device)
print("gradients are on the devices of the weights:", bottom.weight.grad.device == bottom.weight.device)
