"""Lightning Fabric: micro-batches of four sequences, eight of them a step, one denominator."""

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

mg.integrations.install()

torch.manual_seed(0)
tokens = torch.randint(1, 50, (64, 12))
lengths = torch.randint(1, 13, (64, 1))
labels = torch.where(torch.arange(12) < lengths, tokens % 7, -100)  # -100: nothing to learn there
loader = torch.utils.data.DataLoader(list(zip(tokens, labels, strict=True)), batch_size=4, shuffle=True)

fabric = Fabric(accelerator="cpu", devices=1)
fabric.launch()
model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 7))
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.1))
loader = fabric.setup_dataloaders(loader)
accumulator = mg.integrations.FabricAccumulator(fabric, model)

for epoch in range(20):
    for place, (x, y) in enumerate(loader, start=1):
        scores = model(x).transpose(1, 2)
        losses = F.cross_entropy(scores, mg.masked(y, y != -100), reduction="none")
        accumulator.backward(losses)  # instead of fabric.backward(losses.mean() / 8)
        if place % 8 == 0 or place == len(loader):
            loss = accumulator.finish()
            mg.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    fabric.print(f"epoch {epoch}: {loss:.3f}")  # over all labels of the last step, on all ranks

assert loss < 0.5
