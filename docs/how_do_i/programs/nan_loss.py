import torch
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

torch.manual_seed(0)
x = torch.randn(6, 3)
y = torch.randn(6, 1)
y[1] = y[4] = float("nan")  # not measured
model = nn.Linear(3, 1)

print("missing inputs:", int(x.isnan().sum()), "missing targets:", int(y.isnan().sum()))

loss = F.mse_loss(model(x), y)
loss.backward()
print("plain loss:", loss.item(), "gradient:", model.bias.grad.item())

# Multiplying the loss by a mask does not help: 0 * NaN is NaN.
times_mask = (F.mse_loss(model(x), y, reduction="none") * ~y.isnan()).sum() / 4
print("times a mask:", times_mask.item())

model.zero_grad()
loss = F.mse_loss(model(x), mg.from_nan(y))
loss.backward()
print(
    "masked loss is finite:",
    bool(loss.isfinite()),
    "and so is the gradient:",
    bool(model.bias.grad.isfinite()),
)
