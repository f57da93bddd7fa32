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


@pair("padding-leak", "none found; a set of words as a target, and the pad token in it")
def bag_of_words_of_padding(wrong):
    """The set of a text's words, including the pad token, is the target of another head."""
    encode, words = nn.Linear(4, 6), nn.Linear(6, 12)
    batch = {"x": torch.randn(3, 4), "ids": IDS, "mask": lasting(4, 2, 3)}

    def step(batch):
        logits = words(encode(batch["x"]).relu())
        if wrong:
            present = torch.zeros_like(logits).scatter(1, batch["ids"], 1.0)  # leak
        else:
            present = torch.zeros_like(logits)
            rows, steps = batch["mask"].nonzero(as_tuple=True)
            present[rows, batch["ids"][rows, steps]] = 1.0
        return F.binary_cross_entropy_with_logits(logits, present)

    return Case(step, batch, padding={"ids": "mask"})


@pair("padding-leak", "none found; texts of one length computed together")
def buckets_one_too_long(wrong):
    """Texts of equal length are computed together; the slice is one token too long."""
    encode, head = nn.Linear(4, 6), nn.Linear(6, 1)
    batch = {"x": torch.randn(4, 6, 4), "lengths": torch.tensor([5, 2, 2, 3]), "y": torch.randn(4)}

    def loss_of(batch, extra):
        losses = []
        for length in batch["lengths"].unique().tolist():
            rows = batch["lengths"] == length
            hidden = encode(batch["x"][rows, : max(length, 1) + extra]).tanh()
            pooled = hidden.mean(1)  # leak
            losses.append((head(pooled).squeeze(-1) - batch["y"][rows]).square())
        return torch.cat(losses).mean()

    def step(batch):
        if wrong:
            return loss_of(batch, 1)
        return loss_of(batch, 0)

    return Case(step, batch, padding={"x": torch.arange(6) < batch["lengths"][:, None]})


@pair("padding-leak", "none found; weights by age in an embedding bag")
def histories_without_weights(wrong):
    """A user's history is summed with weights by age, and padded items have weights, too."""
    items, users, head = nn.Embedding(12, 4), nn.Embedding(5, 4), nn.Linear(4, 1)
    batch = {
        "user": torch.tensor([0, 1, 4]),
        "history": IDS,
        "mask": lasting(4, 2, 3),
        "clicked": torch.tensor([1.0, 0.0, 1.0]),
    }

    def loss_of(batch, history):
        logits = head(users(batch["user"]) * history).squeeze(-1)
        return F.binary_cross_entropy_with_logits(logits, batch["clicked"])

    def step(batch):
        ids = batch["history"]
        weight = 0.9 ** torch.arange(ids.size(1)) * (torch.ones(ids.shape) if wrong else batch["mask"])
        history = F.embedding_bag(ids, items.weight, mode="sum", per_sample_weights=weight)  # leak
        return loss_of(batch, history)

    return Case(step, batch, padding={"history": "mask"})


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


@pair("padding-leak", "none found; a product over a padded bag")
def noisy_or_over_padding(wrong):
    """A bag is positive if one instance is: the product of probabilities includes the padded ones."""
    score = nn.Linear(4, 1)
    batch = {
        "instances": torch.randn(3, 6, 4),
        "count": torch.tensor([6, 2, 4]),
        "y": torch.tensor([1.0, 0.0, 1.0]),
    }

    def step(batch):
        absent = 1 - score(batch["instances"]).squeeze(-1).sigmoid()
        if wrong:
            none = absent.prod(1)  # leak
            return F.binary_cross_entropy(1 - none, batch["y"])
        real = torch.arange(absent.size(1)) < batch["count"][:, None]
        none = torch.where(real, absent, 1.0).prod(1)
        return F.binary_cross_entropy(1 - none.clamp(1e-6, 1 - 1e-6), batch["y"])

    return Case(step, batch, padding={"instances": torch.arange(6) < batch["count"][:, None]})


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
