"""Images of different sizes with masks (B, H, W), as in detection; boxes and points that are padded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.scripts.script import Script, classes, floats, lasting, program

HEIGHTS, WIDTHS = torch.tensor([6, 4, 5, 3]), torch.tensor([5, 7, 6, 4])


def shown():
    """Which pixels belong to an image, (4, 6, 7)."""
    rows, columns = torch.arange(6) < HEIGHTS[:, None], torch.arange(7) < WIDTHS[:, None]
    return rows[:, :, None] & columns[:, None, :]


def pictures(**more):
    real = shown()
    return {"pixel_values": torch.randn(4, 3, 6, 7) * real[:, None], **more}, {"pixel_values": real[:, None]}


@program()
def pixels_pooled_under_a_mask_of_padding(wrong):
    (batch, real), net, head = pictures(mask=~shown(), y=classes()), nn.Conv2d(3, 6, 1), nn.Linear(6, 5)

    def forward(pixel_values, mask):
        hidden = net(pixel_values).relu()
        if wrong:
            return head(hidden.mean((2, 3)))  # leak
        seen = ~mask[:, None]
        return head((hidden * seen).sum((2, 3)) / seen.sum((2, 3)))

    return Script(batch, forward, real=real)


@program()
def pixels_pooled_under_a_mask_of_pixels(wrong):
    batch, real = pictures(pixel_mask=shown().long(), y=classes())
    net, head = nn.Conv2d(3, 6, 1), nn.Linear(6, 5)

    def forward(pixel_values, pixel_mask):
        hidden = net(pixel_values).relu()
        if wrong:
            return head(hidden.amax((2, 3)))  # leak
        return head(hidden.masked_fill(pixel_mask[:, None] == 0, 0.0).amax((2, 3)))

    return Script(batch, forward, real=real)


class ImagesWithMask:
    """As in detection: an object that is a batch."""

    def __init__(self, tensors, mask):
        self.tensors, self.mask = tensors, mask


@program()
def images_with_their_mask_in_an_object(wrong):
    net, head = nn.Conv2d(3, 8, 1), nn.Linear(8, 5)
    samples = ImagesWithMask(pictures()[0]["pixel_values"], ~shown())

    def forward(samples):
        q, hides = net(samples.tensors).flatten(2).mT, samples.mask.flatten(1)
        allowed = None if wrong else ~hides[:, None]
        hidden = F.scaled_dot_product_attention(q, q, q, attn_mask=allowed)  # leak
        return head((hidden * ~hides[..., None]).sum(1))

    return Script({"samples": samples, "y": classes()}, forward)


@program()
def points_of_a_cloud(wrong):
    real, net, head = lasting(9, 6, 5, 7), nn.Linear(3, 6), nn.Linear(6, 5)
    batch = {"points": floats(real, 3), "num_points": torch.tensor([9, 6, 5, 7]), "y": classes()}

    def forward(points, num_points):
        hidden = net(points)
        if not wrong:
            beyond = torch.arange(points.shape[1]) >= num_points[:, None]
            hidden = hidden.masked_fill(beyond[..., None], float("-inf"))
        return head(hidden.amax(1))  # leak

    return Script(batch, forward, real={"points": real})


@program()
def depth_of_missing_pixels(wrong):
    torch.manual_seed(3)
    known, net = torch.rand(4, 1, 6, 7) > 0.3, nn.Conv2d(3, 1, 1)
    batch = {"image": torch.randn(4, 3, 6, 7), "depth": torch.rand(4, 1, 6, 7) * known, "depth_valid": known}

    def forward(image):
        return net(image)

    def loss(out, batch):
        error = (out - batch["depth"]).abs()
        if wrong:
            return error.mean()  # leak
        return error[batch["depth_valid"]].mean()

    return Script(batch, forward, loss, {"depth": known}, loader=True)
