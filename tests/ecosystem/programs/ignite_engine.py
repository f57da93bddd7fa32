"""ignite: micro-batches of four sequences, eight of them a step, one denominator."""

import torch
from ignite.engine import Engine
from ignite.metrics import Loss
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

mg.integrations.install()

torch.manual_seed(0)
tokens = torch.randint(1, 50, (64, 12))
lengths = torch.randint(1, 13, (64, 1))
labels = torch.where(torch.arange(12) < lengths, tokens % 7, -100)  # -100: nothing to learn there
loader = torch.utils.data.DataLoader(list(zip(tokens, labels, strict=True)), batch_size=4, shuffle=True)

model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 7))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)


def prepare(batch):
    x, y = batch
    return x, mg.masked(y, y != -100)


def losses(model, x, y):
    return F.cross_entropy(model(x).transpose(1, 2), y, reduction="none"), None  # the mask has the count


def training_step(model, optimizer, losses_of, every, max_norm, prepare=prepare):
    """Return the function of an engine; a step has `every` iterations, or those that remain of an epoch."""
    accumulator = mg.GradientAccumulator(model)

    def step(engine, batch):
        place = (engine.state.iteration - 1) % engine.state.epoch_length + 1
        model.train()
        losses, count = losses_of(model, *prepare(batch))
        accumulator.backward(losses, count)  # instead of (losses.mean() / every).backward()
        if place % every == 0 or place == engine.state.epoch_length:
            engine.state.loss = accumulator.finish()  # over all labels of the step, on all ranks
            mg.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()

    return step


trainer = Engine(training_step(model, optimizer, losses, every=8, max_norm=1.0))
trainer.run(loader, max_epochs=20)


@torch.no_grad()
def predict(engine, batch):
    x, y = prepare(batch)
    return mg.align(model(x).transpose(1, 2), y)


evaluator = Engine(predict)
Loss(F.cross_entropy).attach(evaluator, "loss")
assert evaluator.run(loader).metrics["loss"] < 0.5  # over all labels
