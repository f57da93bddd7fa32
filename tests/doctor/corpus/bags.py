"""Bags, sets and segments of which padding is a member."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.pairs import Case, lasting, pair

IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 10, 11, 0]])


@pair("padding-leak", "pytorch/pytorch#47858")
def bag_of_padding(wrong):
    """The mean of an embedding bag counts the pad token, because padding_idx is missing."""
    bag, head = nn.EmbeddingBag(10, 5, mode="mean"), nn.Linear(5, 3)
    batch = {
        "items": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 0, 0, 0]]),
        "mask": lasting(4, 2, 1),
        "y": torch.tensor([2, 0, 1]),
    }

    def step(batch):
        if wrong:
            vectors = bag(batch["items"])  # leak
        else:
            items = batch["items"].masked_fill(~batch["mask"], 0)
            vectors = F.embedding_bag(items, bag.weight, mode="mean", padding_idx=0)
        return F.cross_entropy(head(vectors), batch["y"])

    return Case(step, batch, padding={"items": "mask"})


@pair("padding-leak", "none found; Chamfer distance of padded point clouds")
def nearest_padded_point(wrong):
    """Chamfer distance of point clouds: the nearest point of the other cloud may be padding."""
    move = nn.Linear(3, 3)
    batch = {"source": torch.randn(3, 4, 3), "target": torch.randn(3, 6, 3), "target_mask": lasting(6, 2, 1)}
    batch["target"][~batch["target_mask"]] = 0.0

    def step(batch):
        distance = torch.cdist(move(batch["source"]), batch["target"])
        if wrong:
            return distance.amin(2).mean()  # leak
        return distance.masked_fill(~batch["target_mask"][:, None], 1e30).amin(2).clamp(max=1e3).mean()

    return Case(step, batch, padding={"target": "target_mask"})


@pair("padding-leak", "none found; offsets of real tokens in a padded batch")
def offsets_of_padded_rows(wrong):
    """Offsets that count real tokens index a tensor of padded rows."""
    encode, head = nn.Linear(4, 6), nn.Linear(6, 1)
    batch = {"x": torch.randn(3, 5, 4), "lengths": torch.tensor([4, 2, 5]), "y": torch.randn(3)}

    def loss_of(batch, total):
        pooled = total / batch["lengths"].clamp(min=1)[:, None]
        return (head(pooled).squeeze(-1) - batch["y"]).square().mean()

    def step(batch):
        flat = batch["x"].flatten(0, 1)
        if wrong:
            rows = torch.arange(len(batch["x"])).repeat_interleave(batch["lengths"])
            tokens = encode(flat[: len(rows)]).tanh()
            return loss_of(batch, torch.zeros(len(batch["x"]), 6).index_add(0, rows, tokens))  # leak
        starts = torch.arange(len(batch["lengths"])) * batch["x"].size(1)
        rows = torch.arange(len(batch["x"])).repeat_interleave(batch["lengths"])
        within = torch.cat([torch.arange(int(n)) + s for n, s in zip(batch["lengths"], starts, strict=True)])
        tokens = encode(flat.index_select(0, within)).tanh()
        return loss_of(batch, torch.zeros(len(batch["x"]), 6).index_add(0, rows, tokens))

    return Case(step, batch, padding={"x": torch.arange(5) < batch["lengths"][:, None]})


@pair("padding-leak", "none found; padded tokens in a sum by rows")
def segment_sum_of_padding(wrong):
    """Tokens, including padded ones, are summed by row index."""
    encode, head = nn.Linear(4, 6), nn.Linear(6, 1)
    batch = {"x": torch.randn(3, 5, 4), "mask": lasting(4, 2, 5), "y": torch.randn(3)}

    def step(batch):
        if wrong:
            tokens = encode(batch["x"]).relu().flatten(0, 1)
            rows = torch.arange(len(batch["x"])).repeat_interleave(batch["x"].size(1))
            total = torch.zeros(len(batch["x"]), 6).index_add(0, rows, tokens)  # leak
        else:
            rows, steps = batch["mask"].nonzero(as_tuple=True)
            tokens = encode(batch["x"][rows, steps]).relu()
            total = torch.zeros(len(batch["x"]), 6).index_add(0, rows, tokens)
        return (head(total).squeeze(-1) - batch["y"]).square().mean()

    return Case(step, batch, padding={"x": "mask"})
