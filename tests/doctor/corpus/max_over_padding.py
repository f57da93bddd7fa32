"""The maximum over tokens represents the sentence; it may be a padded token.

Thread: thunlp/HATT-Proto#12
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

encoder, head = nn.Linear(4, 8), nn.Linear(8, 2)
batch = {
    "features": torch.randn(3, 5, 4),
    "mask": torch.arange(5) < torch.tensor([[5], [3], [1]]),
    "y": torch.tensor([0, 1, 1]),
}
padding = {"features": "mask"}


def wrong(batch):
    hidden = encoder(batch["features"]).relu()
    strongest = hidden.amax(1)  # leak
    return F.cross_entropy(head(strongest), batch["y"])


def fixed(batch):
    hidden = encoder(batch["features"]).relu()
    strongest = hidden.masked_fill(~batch["mask"][..., None], 0).amax(1)
    return F.cross_entropy(head(strongest), batch["y"])
