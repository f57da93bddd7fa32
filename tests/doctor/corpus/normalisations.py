"""Statistics of features and batches that include padding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.pairs import Case, lasting, pair


@pair("padding-leak", "pytorch/pytorch#70529")
def batchnorm_over_padding(wrong):
    """Batch statistics of tokens include the padded ones."""
    linear, norm, head = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
    batch = {"x": torch.randn(4, 5, 3), "mask": lasting(5, 2, 3, 4), "y": torch.randn(4, 5)}

    def step(batch):
        if wrong:
            hidden = linear(batch["x"]).transpose(1, 2)
            normed = norm(hidden).transpose(1, 2)  # leak
            error = head(normed).squeeze(-1) - batch["y"]
            return error[batch["mask"]].square().mean()
        hidden = linear(batch["x"][batch["mask"]])
        error = head(norm(hidden)).squeeze(-1) - batch["y"][batch["mask"]]
        return error.square().mean()

    return Case(step, batch, padding={"x": "mask", "y": "mask"})


@pair("padding-leak", "espnet/espnet#6571")
def feature_normalizer(wrong):
    """Features are standardised with the mean of a padded batch."""
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    batch = {"x": torch.randn(3, 4, 3) * 5 + 2, "mask": lasting(4, 1, 2), "y": torch.randn(3, 4)}

    def step(batch):
        if wrong:
            centred = batch["x"] - batch["x"].mean((0, 1))  # leak
            error = (model(centred).squeeze(-1) - batch["y"]).masked_fill(~batch["mask"], 0)
            return error.square().sum() / batch["mask"].sum()
        mask = batch["mask"]
        x = batch["x"].masked_fill(~mask[..., None], 0)
        centred = x - x.sum((0, 1)) / mask.sum()
        error = (model(centred).squeeze(-1) - batch["y"]).masked_fill(~mask, 0)
        return error.square().sum() / mask.sum()

    return Case(step, batch, model=model, padding={"x": "mask", "y": "mask"})


@pair("padding-leak", "pytorch/pytorch#81985")
def layer_norm_over_time(wrong):
    """A layer norm over time and features: one mean for all tokens of a text, including padding."""
    encode, norm, token_norm = nn.Linear(4, 6), nn.GroupNorm(1, 6), nn.LayerNorm(6)
    head = nn.Linear(6, 1)
    batch = {"x": torch.randn(3, 5, 4), "mask": lasting(5, 3, 2), "y": torch.randn(3, 5)}

    def loss_of(batch, hidden):
        error = head(hidden).squeeze(-1) - batch["y"]
        return error[batch["mask"]].square().mean()

    def step(batch):
        if wrong:
            hidden = encode(batch["x"]).transpose(1, 2)
            hidden = norm(hidden)  # leak
            return loss_of(batch, hidden.transpose(1, 2))
        return loss_of(batch, token_norm(encode(batch["x"])))

    return Case(step, batch, padding={"x": "mask", "y": "mask"})


@pair("padding-leak", "pytorch/pytorch#81985")
def normalisation_over_time(wrong):
    """Instance normalisation of a recording: mean and variance over all frames, including padding."""
    project, head = nn.Linear(3, 4), nn.Linear(4, 5)
    batch = {
        "audio": torch.randn(2, 6, 3),
        "mask": lasting(6, 3),
        "labels": torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, -100, -100, -100]]),
    }

    def step(batch):
        if wrong:
            hidden = project(batch["audio"]).transpose(1, 2)
            normed = F.instance_norm(hidden)  # leak
            return F.cross_entropy(head(normed.transpose(1, 2)).transpose(1, 2), batch["labels"])
        real = batch["mask"][..., None]
        hidden = project(batch["audio"]).masked_fill(~real, 0)
        count = real.sum(1, keepdim=True).clamp(min=1)
        centred = (hidden - hidden.sum(1, keepdim=True) / count).masked_fill(~real, 0)
        variance = centred.square().sum(1, keepdim=True) / count
        normed = centred / (variance + 1e-5).sqrt()
        return F.cross_entropy(head(normed).transpose(1, 2), batch["labels"])

    return Case(step, batch, padding={"audio": "mask"})


@pair("padding-leak", "DataDog/toto#57")
def scaled_by_padded_mean(wrong):
    """A time series is scaled by the mean size of its past, and the past is padded on the left."""
    model = nn.GRUCell(1, 6)
    head = nn.Linear(6, 1)
    batch = {
        "past": torch.randn(3, 5),
        "observed": torch.arange(5) >= torch.tensor([[0], [2], [3]]),
        "future": torch.randn(3),
    }

    def loss_of(batch, past, scale):
        state = torch.zeros(len(past), 6)
        for value, seen in zip((past / scale).unbind(1), batch["observed"].unbind(1), strict=True):
            state = torch.where(seen[:, None], model(value[:, None], state), state)
        return (head(state).squeeze(-1) * scale.squeeze(-1) - batch["future"]).abs().mean()

    def step(batch):
        if wrong:
            scale = batch["past"].abs().mean(1, keepdim=True)  # leak
            return loss_of(batch, batch["past"].masked_fill(~batch["observed"], 0), scale)
        past = batch["past"].masked_fill(~batch["observed"], 0)
        scale = past.abs().sum(1, keepdim=True) / batch["observed"].sum(1, keepdim=True).clamp(min=1)
        return loss_of(batch, past, scale.clamp(min=1e-3))

    return Case(step, batch, model=model, padding={"past": "observed"})
