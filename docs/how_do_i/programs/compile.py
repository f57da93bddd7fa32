import torch
from torch.nn import functional as F

import maskgrad as mg

model = torch.nn.Linear(3, 1)


@torch.compile(fullgraph=True, backend="aot_eager")  # omit the backend for Inductor
def loss_of(x, target):
    return F.mse_loss(model(x), target)


x = torch.randn(8, 3)
loss_of(mg.masked(x, torch.rand(8, 3) < 0.5), torch.zeros(8, 1)).backward()
with mg.assert_no_recompile():
    for density in (0.1, 0.5, 1.0):
        loss_of(mg.masked(x, torch.rand(8, 3) < density), torch.zeros(8, 1)).backward()
print("compiled once")
