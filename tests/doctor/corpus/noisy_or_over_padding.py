"""A bag is positive if one instance is: the product of probabilities includes the padded ones.

Thread: none found; a product over a padded bag
"""

import torch
import torch.nn.functional as F
from torch import nn

kind = "padding-leak"

score = nn.Linear(4, 1)
batch = {
    "instances": torch.randn(3, 6, 4),
    "count": torch.tensor([6, 2, 4]),
    "y": torch.tensor([1.0, 0.0, 1.0]),
}
padding = {"instances": torch.arange(6) < batch["count"][:, None]}


def wrong(batch):
    absent = 1 - score(batch["instances"]).squeeze(-1).sigmoid()
    none = absent.prod(1)  # leak
    return F.binary_cross_entropy(1 - none, batch["y"])


def fixed(batch):
    absent = 1 - score(batch["instances"]).squeeze(-1).sigmoid()
    real = torch.arange(absent.size(1)) < batch["count"][:, None]
    none = torch.where(real, absent, 1.0).prod(1)
    return F.binary_cross_entropy(1 - none.clamp(1e-6, 1 - 1e-6), batch["y"])
