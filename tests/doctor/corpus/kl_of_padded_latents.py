"""The divergence of the latent variables from their prior is averaged over padded steps.

Thread: none found; the divergence of one latent variable for each step
"""

import torch
from torch import nn

kind = "padding-leak"

encode, decode = nn.Linear(4, 6), nn.Linear(3, 4)
batch = {
    "x": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [2], [3]]),
}
padding = {"x": "mask"}


def parts_of(batch):
    mean, logvar = encode(batch["x"]).chunk(2, -1)
    latent = mean + torch.randn(3) * (0.5 * logvar).exp()
    error = (decode(latent) - batch["x"])[batch["mask"]].square().mean()
    return error, -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(-1)


def wrong(batch):
    error, divergence = parts_of(batch)
    return error + 0.1 * divergence.mean()  # leak


def fixed(batch):
    error, divergence = parts_of(batch)
    return error + 0.1 * divergence.masked_select(batch["mask"]).mean()
