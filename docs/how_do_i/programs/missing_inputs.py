import torch
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

torch.manual_seed(0)
x = torch.randn(512, 6)
y = x.sum(1, keepdim=True)
x[torch.rand(512, 6) < 0.2] = float("nan")  # a fifth of the inputs is missing

model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(150):
    optimizer.zero_grad()
    loss = F.mse_loss(model(mg.from_nan(x)), y)
    loss.backward()
    optimizer.step()
    if step == 0:
        first = loss.item()
print("the loss fell to less than a third:", loss.item() < first / 3)
print("all weights are finite:", all(p.isfinite().all().item() for p in model.parameters()))

statistics = mg.from_nan(x).mean(0).filled(0.0)
print(
    "running mean equals that of the observed values:",
    torch.allclose(model[0].running_mean, statistics, atol=1e-3),
)
