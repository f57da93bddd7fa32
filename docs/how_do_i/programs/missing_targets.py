import torch
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

torch.manual_seed(0)
x = torch.randn(200, 5)
targets = x @ torch.randn(5, 3)  # three tasks
targets[torch.rand(200, 3) < 0.7] = float("nan")  # seven of ten labels are missing

model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
observed = mg.from_nan(targets)
print(f"{observed.num_specified().item()} of {observed.numel()} targets are observed")

for _ in range(300):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), observed)
    loss.backward()
    optimizer.step()
print("the loss is small:", loss.item() < 0.05)

# The same by hand.
known = ~targets.isnan()
print(
    "as by hand:", torch.allclose(F.mse_loss(model(x), observed), F.mse_loss(model(x)[known], targets[known]))
)
