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


def losses(scores, y):
    return F.cross_entropy(scores.transpose(1, 2), y, reduction="none")


trainer = Engine(
    mg.integrations.ignite_training_step(
        model, optimizer, losses, gradient_accumulation_steps=8, max_norm=1.0, prepare_batch=prepare
    )
)
trainer.run(loader, max_epochs=20)


@torch.no_grad()
def predict(engine, batch):
    x, y = prepare(batch)
    return mg.align(model(x).transpose(1, 2), y)


evaluator = Engine(predict)
Loss(F.cross_entropy).attach(evaluator, "loss")
assert evaluator.run(loader).metrics["loss"] < 0.5  # over all labels
