import tempfile
from pathlib import Path

import torch
from torch import nn

import maskgrad as mg

path = Path(tempfile.mkdtemp()) / "checkpoint.pt"


def begin():
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 1))
    optimizer = mg.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def epoch(model, optimizer, scheduler):
    optimizer.zero_grad()
    model(torch.randint(0, 50, (4, 3))).square().mean().backward()
    optimizer.step()
    scheduler.step()


model, optimizer, scheduler = begin()
for number in range(6):
    epoch(model, optimizer, scheduler)
    if number == 2:
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save(state | {"random": torch.get_rng_state(), "epoch": number}, path)
without_a_break = model[0].weight.detach().clone()

model, optimizer, scheduler = begin()
state = torch.load(path)  # weights_only=True, PyTorch's default, is enough
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
scheduler.load_state_dict(state["scheduler"])
torch.set_rng_state(state["random"])
for _ in range(state["epoch"] + 1, 6):
    epoch(model, optimizer, scheduler)
print("bitwise equal:", torch.equal(model[0].weight, without_a_break))
