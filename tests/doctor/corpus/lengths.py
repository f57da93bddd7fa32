"""What the amount of padding decides."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.pairs import Case, lasting, pair


@pair("padding-length", "meta-pytorch/opacus#792")
def clipping_per_sample(wrong):
    """Each sample's gradient is clipped by the norm of a loss that divides by the padded length."""
    model = nn.Linear(3, 4)
    batch = {
        "x": torch.randn(3, 5, 3),
        "labels": torch.tensor([[0, 1, 2, 3, 0], [1, 2, -100, -100, -100], [3, 0, 1, -100, -100]]),
    }

    def clipped(losses):
        norms = torch.stack(
            [torch.autograd.grad(each, model.bias, retain_graph=True)[0].norm() for each in losses]
        )
        return (losses * (0.5 / norms.clamp(min=0.5))).sum()

    def step(batch):
        if wrong:
            logits = model(batch["x"].nan_to_num()).transpose(1, 2)
            tokens = F.cross_entropy(logits, batch["labels"], reduction="none")
            return clipped(tokens.mean(1))  # leak
        real = batch["labels"] != -100
        logits = model(batch["x"].masked_fill(~real[..., None], 0)).transpose(1, 2)
        tokens = F.cross_entropy(logits, batch["labels"], reduction="none")
        return clipped(tokens.sum(1) / real.sum(1).clamp(min=1))

    return Case(step, batch, model=model, padding={"x": batch["labels"] != -100})


@pair("padding-length", "brightmart/text_classification#40")
def divided_by_the_padded_length(wrong):
    """The sum is masked, the denominator is the padded length."""
    embed, head = nn.Embedding(12, 6), nn.Linear(6, 3)
    batch = {
        "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 0, 0, 0]]),
        "attention_mask": lasting(4, 2, 1).long(),
        "y": torch.tensor([2, 0, 1]),
    }

    def step(batch):
        hidden = embed(batch["input_ids"]).masked_fill(batch["attention_mask"][..., None] == 0, 0)
        if wrong:
            pooled = hidden.sum(1) / hidden.size(1)  # leak
        else:
            pooled = hidden.sum(1) / batch["attention_mask"].sum(1, keepdim=True).clamp(min=1)
        return F.cross_entropy(head(pooled), batch["y"])

    return Case(step, batch)


@pair("padding-length", "ndif-team/nnsight#673")
def positions_from_the_left(wrong):
    """A left-padded batch gets positions that start in the padding."""
    embed, place, head = nn.Embedding(12, 6), nn.Embedding(10, 6), nn.Linear(6, 12)
    batch = {
        "input_ids": torch.tensor([[3, 4, 5, 6], [0, 0, 7, 8], [0, 0, 0, 9]]),
        "attention_mask": lasting(4, 2, 1).flip(1).long(),
        "labels": torch.tensor([[4, 5, 6, 1], [-100, -100, 8, 1], [-100, -100, -100, 1]]),
    }

    def step(batch):
        if wrong:
            ids = batch["input_ids"]
            hidden = embed(ids) + place(torch.arange(ids.size(1)))  # leak
        else:
            positions = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
            hidden = embed(batch["input_ids"]) + place(positions)
        return F.cross_entropy(head(hidden.tanh()).transpose(1, 2), batch["labels"])

    return Case(step, batch)


@pair("padding-length", "jingyaogong/minimind#298")
def score_by_padded_length(wrong):
    """Beams are compared by the mean log-probability of their tokens, divided by the longest one's length."""
    model = nn.Linear(4, 6)
    batch = {
        "states": torch.randn(4, 5, 4),
        "tokens": torch.tensor([[1, 2, 3, 4, 5], [2, 3, 0, 0, 0], [1, 1, 4, 0, 0], [5, 4, 3, 2, 0]]),
        "mask": lasting(5, 2, 3, 4),
        "quality": torch.rand(4),
    }

    def summed(batch):
        logp = model(batch["states"]).log_softmax(-1)
        chosen = logp.gather(-1, batch["tokens"][..., None])[..., 0]
        return torch.where(batch["mask"], chosen, 0.0).sum(1)

    def step(batch):
        if wrong:
            score = summed(batch) / batch["tokens"].shape[1]  # leak
        else:
            score = summed(batch) / batch["mask"].sum(1).clamp(min=1)
        return (score.exp() - batch["quality"]).square().mean()

    return Case(step, batch, model=model, padding={"states": "mask", "tokens": "mask"})


@pair("padding-length", "mozilla/TTS#429")
def second_convolution(wrong):
    """The input is masked, the hidden layer is not: the second convolution reads the bias of the first in padding."""
    first, second = nn.Conv1d(3, 4, 3, padding=1), nn.Conv1d(4, 5, 3, padding=1)
    batch = {
        "x": torch.randn(2, 7, 3),
        "mask": lasting(7, 4),
        "labels": torch.tensor([[0, 1, 2, 3, 4, 0, 1], [2, 3, 4, 0, -100, -100, -100]]),
    }

    def step(batch):
        if wrong:
            x = batch["x"].masked_fill(~batch["mask"][..., None], 0).transpose(1, 2)
            hidden = first(x).relu()
            logits = second(hidden)  # leak
            return F.cross_entropy(logits, batch["labels"])
        padded = ~batch["mask"][:, None]
        x = batch["x"].transpose(1, 2).masked_fill(padded, 0)
        hidden = first(x).relu().masked_fill(padded, 0)
        return F.cross_entropy(second(hidden), batch["labels"])

    return Case(step, batch, padding={"x": "mask"})


@pair("padding-length", "harvardnlp/sent-conv-torch#34")
def sum_of_a_padded_set(wrong):
    """Padded elements are zero, but not after the network: the sum over the set includes its bias."""
    element, whole = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 6)), nn.Linear(6, 1)
    batch = {"set": torch.randn(3, 5, 3), "mask": lasting(5, 2, 3), "y": torch.randn(3)}

    def step(batch):
        clean = batch["set"].masked_fill(~batch["mask"][..., None], 0)
        if wrong:
            total = element(clean).sum(1)  # leak
        else:
            total = element(clean).masked_fill(~batch["mask"][..., None], 0).sum(1)
        return (whole(total).squeeze(-1) - batch["y"]).square().mean()

    return Case(step, batch, padding={"set": "mask"})
