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


def masked_losses(model, x, y):
    return F.cross_entropy(model(x).transpose(1, 2), mg.masked(y, y != -100), reduction="none")


def propagate(fabric, model, micro_batches, losses_of):
    """Propagate the sums of a step's losses, and divide the gradients by the number of all of them, once."""
    total, count = torch.zeros(2, device=fabric.device, dtype=torch.float64)
    for place, micro_batch in enumerate(micro_batches, start=1):
        with fabric.no_backward_sync(model, enabled=place < len(micro_batches)):
            losses = losses_of(model, *micro_batch)
            fabric.backward(losses.sum())  # instead of fabric.backward(losses.mean() / 8)
        total, count = total + losses.sum().detach(), count + losses.num_specified()
    total, count = fabric.all_reduce([total, count], reduce_op="sum")
    for param in model.parameters():
        if param.grad is not None:  # averaged over ranks by DistributedDataParallel
            param.grad *= float(fabric.world_size / count.clamp(min=1))
    return total / count


for epoch in range(20):
    batches = list(loader)
    for start in range(0, len(batches), 8):
        loss = propagate(fabric, model, batches[start : start + 8], masked_losses)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
    fabric.print(f"epoch {epoch}: {loss:.3f}")  # over all labels of the last step, on all ranks

assert loss < 0.5
