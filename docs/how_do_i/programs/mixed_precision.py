import torch
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

torch.manual_seed(0)
table, head = nn.Embedding(1000, 16, sparse=True), nn.Linear(16, 1)
optimizer = mg.optim.Adagrad([*table.parameters(), *head.parameters()], lr=0.1)
scaler = mg.amp.GradScaler("cpu")  # "cuda" on a GPU
words, target = torch.tensor([3, 3, 7, 9]), torch.tensor([[1.0], [1.0], [float("nan")], [2.0]])

for _ in range(50):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.mse_loss(head(table(words)).float(), mg.from_nan(target))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    mg.clip_grad_norm_([*table.parameters(), *head.parameters()], 1.0)
    scaler.step(optimizer)
    scaler.update()
print("the loss is small:", loss.item() < 0.1)
print("no step was skipped, the scale is", scaler.get_scale())
