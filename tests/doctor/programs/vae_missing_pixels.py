"""A variational autoencoder learns from pictures of which some pixels were never seen.

After the VAE of PyTorch's examples; pixels that are missing are NaN, as they come from the file.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

SIZE, LATENT = 8, 3


def pictures(count, seed=0):
    """Soft discs somewhere in a square."""
    draw = torch.Generator().manual_seed(seed)
    centre = 2 + 4 * torch.rand(count, 2, 1, 1, generator=draw)
    radius = 1 + 2 * torch.rand(count, 1, 1, generator=draw)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    distance = ((x - centre[:, 0]).square() + (y - centre[:, 1]).square()).sqrt()
    return torch.sigmoid(2 * (radius - distance))[:, None]


def with_holes(images, share=0.25, seed=1):
    """A square of each picture and some single pixels are missing."""
    draw = torch.Generator().manual_seed(seed)
    missing = torch.rand(images.shape, generator=draw) < share
    for i in range(len(images)):
        top, left = torch.randint(SIZE - 3, (2,), generator=draw).tolist()
        missing[i, :, top : top + 3, left : left + 3] = True
    return images.masked_fill(missing, math.nan)


class PartialConv2d(nn.Conv2d):
    """A convolution over what was seen, scaled by how much of the window that is; and what is seen afterwards."""

    def forward(self, x, seen):
        window = torch.ones(1, 1, *self.kernel_size, device=x.device)
        count = F.conv2d(seen, window, stride=self.stride, padding=self.padding)
        x = torch.where(seen > 0, x, 0.0)
        out = F.conv2d(x, self.weight, stride=self.stride, padding=self.padding)
        out = out * (window.numel() / count.clamp(min=1)) + self.bias[:, None, None]
        after = (count > 0).to(x.dtype)
        return out * after, after


class Encoder(nn.Module):
    """Mean and logarithm of the variance of what may have made a picture."""

    def __init__(self, width):
        super().__init__()
        self.first = PartialConv2d(1, width, 3, stride=2, padding=1)
        self.second = PartialConv2d(width, width, 3, stride=2, padding=1)
        self.mean, self.spread = nn.Linear(4 * width, LATENT), nn.Linear(4 * width, LATENT)

    def forward(self, x, seen):
        x, seen = self.first(x, seen)
        x, seen = self.second(F.elu(x), seen)
        hidden = F.elu(x).flatten(1)
        return self.mean(hidden), self.spread(hidden).clamp(-6, 3)


class Decoder(nn.Module):
    """From a few numbers to all pixels, missing ones too: that is what the model is for."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(LATENT, 4 * width)
        self.up = nn.ConvTranspose2d(width, width, 4, stride=2, padding=1)
        self.last = nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1)

    def forward(self, z):
        x = F.elu(self.first(z)).unflatten(1, (-1, 2, 2))
        return self.last(F.elu(self.up(x)))


class VAE(nn.Module):
    """Encoder, noise, decoder."""

    def __init__(self, width=4):
        super().__init__()
        self.encoder, self.decoder = Encoder(width), Decoder(width)

    def forward(self, images):
        seen = (~images.isnan()).to(images.dtype)
        mean, spread = self.encoder(images, seen)
        z = mean + torch.randn_like(mean) * (spread / 2).exp()
        return self.decoder(z), mean, spread


model = VAE()
batch = {"images": with_holes(pictures(5))}


def step(batch):
    """The evidence bound: pixels that were seen, and the divergence of each picture from the prior."""
    images = batch["images"]
    logits, mean, spread = model(images)
    seen = ~images.isnan()
    target = torch.where(seen, images, 0.0)
    pixels = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    reconstruction = pixels.masked_fill(~seen, 0).flatten(1).sum(1)
    divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).sum(1)
    return (reconstruction + 0.1 * divergence).mean()


def train(steps=3):
    """The usual loop."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        step(batch).backward()
        optimizer.step()
