"""Accelerate: micro-batches of four sequences, eight of them a step, one denominator."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

mg.integrations.install()

torch.manual_seed(0)
tokens = torch.randint(1, 50, (64, 12))
lengths = torch.randint(1, 13, (64, 1))
labels = torch.where(torch.arange(12) < lengths, tokens % 7, -100)  # -100: nothing to learn there
loader = torch.utils.data.DataLoader(list(zip(tokens, labels, strict=True)), batch_size=4, shuffle=True)

accelerator = Accelerator(gradient_accumulation_steps=8)
model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 7))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
accumulator = mg.GradientAccumulator(model, scaler=accelerator.scaler)

for epoch in range(20):
    for x, y in loader:
        with accelerator.accumulate(model):
            scores = model(x).transpose(1, 2)
            losses = F.cross_entropy(scores, mg.masked(y, y != -100), reduction="none")
            accumulator.backward(losses)  # instead of accelerator.backward(losses.mean())
            if accelerator.sync_gradients:
                loss = accumulator.finish()  # the mean over all labels of the step, on all ranks
                accelerator.unscale_gradients()
                mg.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"epoch {epoch}: {loss:.3f}")

assert loss < 0.5
