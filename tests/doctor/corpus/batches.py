"""Micro-batches, the order of samples, rows without entries, and NaN under a mask."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from tests.doctor.pairs import Case, lasting, pair


@pair("denominator", "huggingface/transformers#24725")
def accumulation_by_means(wrong):
    """Two micro-batches, each the mean of its own tokens, halved: tokens of the shorter one weigh more."""
    embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
    batch = {
        "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 9, 0], [9, 10, 0, 0], [11, 0, 0, 0]]),
        "attention_mask": lasting(4, 3, 2, 1).long(),
        "labels": torch.tensor([[4, 5, 6, 1], [8, 9, 1, -100], [10, 1, -100, -100], [1, -100, -100, -100]]),
    }

    def step(batch):
        total = torch.tensor(0.0)
        if wrong:
            for ids, labels in zip(batch["input_ids"].chunk(2), batch["labels"].chunk(2), strict=True):
                logits = head(embed(ids)).transpose(1, 2)
                total = total + F.cross_entropy(logits, labels) / 2  # leak
        else:
            tokens = (batch["labels"] != -100).sum()
            for ids, labels in zip(batch["input_ids"].chunk(2), batch["labels"].chunk(2), strict=True):
                logits = head(embed(ids)).transpose(1, 2)
                total = total + F.cross_entropy(logits, labels, reduction="sum") / tokens
        return total

    return Case(step, batch)


@pair("denominator", "huggingface/transformers#34242")
def mean_of_rank_means(wrong):
    """Each rank averages over its own tokens, then the ranks are averaged."""
    model = nn.Linear(3, 1)
    batch = {"x": torch.randn(4, 5, 3), "y": torch.randn(4, 5), "mask": lasting(5, 4, 1, 2)}

    def rank_loss(x, y, mask):
        error = F.mse_loss(model(x.masked_fill(~mask[..., None], 0)).squeeze(-1), y, reduction="none")
        return error.masked_fill(~mask, 0).sum(), mask.sum()

    def step(batch):
        ranks = zip(*(batch[name].chunk(2) for name in ("x", "y", "mask")), strict=True)
        if wrong:
            losses = torch.stack([total / count for total, count in (rank_loss(*rank) for rank in ranks)])
            return losses.mean()  # leak
        totals, counts = zip(*(rank_loss(*rank) for rank in ranks), strict=True)
        return sum(totals) / sum(counts)

    return Case(step, batch, model=model, padding={"x": "mask", "y": "mask"})


@pair("order", "pytorch/pytorch#2615")
def labels_not_sorted_along(wrong):
    """Texts are sorted by length for packing, their labels are not."""
    rnn, head = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 3)
    batch = {
        "x": torch.randn(4, 6, 3),
        "lengths": torch.tensor([2, 6, 3, 5]),
        "y": torch.tensor([0, 1, 2, 1]),
    }

    def encode(x, lengths, order):
        packed = pack_padded_sequence(x[order], lengths[order].clamp(min=1), batch_first=True)
        return rnn(packed)[1][0]

    def step(batch):
        order = batch["lengths"].argsort(descending=True, stable=True)
        state = encode(batch["x"], batch["lengths"], order)
        if wrong:
            return F.cross_entropy(head(state), batch["y"])  # leak
        return F.cross_entropy(head(state), batch["y"][order])

    return Case(step, batch)


@pair("order", "RUCAIBox/RecBole#697")
def state_of_the_last_sample(wrong):
    """A state is carried from one sample to the next inside the batch: training depends on their order."""
    cell, head, start = nn.GRUCell(3, 4), nn.Linear(4, 1), nn.Parameter(torch.randn(1, 4))
    batch = {"x": torch.randn(4, 3), "y": torch.randn(4)}

    def step(batch):
        if wrong:
            state, losses = start, []
            for x, y in zip(batch["x"], batch["y"], strict=True):
                state = cell(x[None], state)  # leak
                losses.append((head(state).squeeze() - y).square())
        else:
            losses = []
            for x, y in zip(batch["x"], batch["y"], strict=True):
                state = cell(x[None], start)
                losses.append((head(state).squeeze() - y).square())
        return torch.stack(losses).mean()

    return Case(step, batch)


@pair("order", "HHTseng/video-classification#42")
def viewed_instead_of_transposed(wrong):
    """`view` instead of `transpose`: only the shape is swapped, and samples are mixed."""
    rnn, head = nn.GRU(3, 4), nn.Linear(4, 2)
    batch = {"x": torch.randn(4, 5, 3), "y": torch.tensor([0, 1, 1, 0])}

    def step(batch):
        x = batch["x"]
        if wrong:
            _, state = rnn(x.reshape(x.size(1), x.size(0), x.size(2)))  # leak
        else:
            _, state = rnn(x.transpose(0, 1))
        return F.cross_entropy(head(state[0]), batch["y"])

    return Case(step, batch)


@pair("empty-row", "HKUDS/LightRAG#3675")
def mean_of_nothing(wrong):
    """A masked mean divides by the number of tokens, which is 0 for an empty text."""
    embed, head = nn.Embedding(12, 6), nn.Linear(6, 3)
    batch = {
        "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [0, 0, 0, 0]]),
        "attention_mask": lasting(4, 2, 0).long(),
        "y": torch.tensor([2, 0, 1]),
    }

    def step(batch):
        hidden = embed(batch["input_ids"]).masked_fill(batch["attention_mask"][..., None] == 0, 0)
        if wrong:
            pooled = hidden.sum(1) / batch["attention_mask"].sum(1, keepdim=True)  # leak
        else:
            pooled = hidden.sum(1) / batch["attention_mask"].sum(1, keepdim=True).clamp(min=1)
        return F.cross_entropy(head(pooled), batch["y"])

    return Case(step, batch)


@pair("empty-row", "MrLeeeee/GCN-GAT-and-Graphsage#3")
def no_neighbours(wrong):
    """A node without neighbours divides by a degree of 0, and training is NaN from then on."""
    model = nn.Linear(3, 1)
    batch = {"neighbours": torch.randn(4, 3, 3), "mask": lasting(3, 0, 2, 3), "y": torch.randn(4)}

    def step(batch):
        messages = batch["neighbours"].masked_fill(~batch["mask"][..., None], 0).sum(1)
        if wrong:
            mean = messages / batch["mask"].sum(1, keepdim=True)  # leak
        else:
            mean = messages / batch["mask"].sum(1, keepdim=True).clamp(min=1)
        return (model(mean).squeeze(-1) - batch["y"]).square().mean()

    return Case(step, batch, model=model, padding={"neighbours": "mask"})


@pair("empty-row", "unslothai/unsloth-zoo#1262")
def per_sample_loss_of_nothing(wrong):
    """Each text's loss is the mean over its labels; a text without labels makes the whole batch NaN."""
    embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
    batch = {
        "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 9, 0], [0, 0, 0, 0]]),
        "attention_mask": lasting(4, 3, 0).long(),
        "labels": torch.tensor([[4, 5, 6, 1], [8, 9, 1, -100], [-100, -100, -100, -100]]),
    }

    def token_losses(batch):
        logits = head(embed(batch["input_ids"])).transpose(1, 2)
        return F.cross_entropy(logits, batch["labels"], reduction="none"), batch["labels"] != -100

    def step(batch):
        losses, real = token_losses(batch)
        per_text = losses.sum(1) / real.sum(1) if wrong else losses.sum(1) / real.sum(1).clamp(min=1)  # leak
        return per_text.mean()

    return Case(step, batch)


@pair("empty-row", "pytorch/pytorch#41508")
def row_without_keys(wrong):
    """A row of padding only has no key to attend to: its softmax is NaN, and so is every gradient."""
    encode = nn.Linear(4, 6)
    batch = {"x": torch.randn(3, 5, 4), "mask": lasting(5, 3, 0)}

    def step(batch):
        hidden = encode(batch["x"].masked_fill(~batch["mask"][..., None], 0))
        if wrong:
            scores = (hidden @ hidden.transpose(1, 2)).masked_fill(~batch["mask"][:, None], -torch.inf)
            weights = scores.softmax(-1)  # leak
            out = (weights @ hidden).masked_fill(~batch["mask"][..., None], 0)
        else:
            lowest = torch.finfo(hidden.dtype).min
            scores = (hidden @ hidden.transpose(1, 2)).masked_fill(~batch["mask"][:, None], lowest)
            out = (scores.softmax(-1) @ hidden).masked_fill(~batch["mask"][..., None], 0)
        return out.square().sum() / batch["mask"].sum()

    return Case(step, batch, padding={"x": "mask"})


@pair("nan-under-mask", "ecmwf/WeatherGenerator#2723")
def nan_times_zero(wrong):
    """The error of padding is multiplied by zero, which does not remove a NaN."""
    model = nn.Linear(3, 1)
    batch = {"x": torch.randn(3, 4, 3), "y": torch.randn(3, 4), "mask": lasting(4, 2, 3)}
    batch["y"][~batch["mask"]] = float("nan")

    def step(batch):
        if wrong:
            error = (model(batch["x"]).squeeze(-1) - batch["y"]).square()
            return (error * batch["mask"]).sum() / batch["mask"].sum()  # leak
        mask = batch["mask"]
        x = batch["x"].masked_fill(~mask[..., None], 0)
        error = (model(x).squeeze(-1) - batch["y"].masked_fill(~mask, 0)).square()
        return (error * mask).sum() / mask.sum()

    return Case(step, batch, model=model, padding={"x": "mask", "y": "mask"})


@pair("nan-under-mask", "pytorch/pytorch#2421")
def root_of_padding(wrong):
    """The norm of a padded vector is 0, and the derivative of its square root infinite."""
    model = nn.Linear(3, 4, bias=False)
    batch = {"x": torch.randn(3, 5, 3), "mask": lasting(5, 2, 3)}

    def step(batch):
        hidden = model(batch["x"].masked_fill(~batch["mask"][..., None], 0))
        if wrong:
            length = hidden.square().sum(-1).sqrt()  # leak
            return length.masked_fill(~batch["mask"], 0).sum() / batch["mask"].sum()
        squares = hidden.square().sum(-1).masked_fill(~batch["mask"], 1)
        return squares.sqrt().masked_fill(~batch["mask"], 0).sum() / batch["mask"].sum()

    return Case(step, batch, model=model, padding={"x": "mask"})


@pair("nan-under-mask", "tensorflow/tensorflow#27684")
def where_after_the_nan(wrong):
    """`where` discards the value of a logarithm, but its gradient is 0 times infinity."""
    model = nn.Linear(3, 1)
    batch = {"x": torch.randn(4, 5, 3), "mask": lasting(5, 2, 3, 1)}
    batch["x"][~batch["mask"]] = float("inf")

    def step(batch):
        if wrong:
            rate = model(batch["x"]).squeeze(-1).square()
            information = torch.log(rate)  # leak
        else:
            x = batch["x"].masked_fill(~batch["mask"][..., None], 1)
            rate = model(x).squeeze(-1).square()
            information = torch.log(rate.masked_fill(~batch["mask"], 1))
        return -torch.where(batch["mask"], information, 0.0).sum() / batch["mask"].sum()

    return Case(step, batch, model=model, padding={"x": "mask"})


@pair("nan-under-mask", "tensorforce/tensorforce#586")
def zero_times_infinity(wrong):
    """The entropy of a policy with forbidden actions: their probability 0 times their log-probability -inf."""
    policy = nn.Linear(4, 5)
    batch = {
        "observation": torch.randn(3, 4),
        "allowed": torch.tensor([[1, 1, 1, 1, 1], [1, 0, 1, 0, 0], [0, 1, 1, 1, 0]]).bool(),
    }

    def step(batch):
        if wrong:
            logits = policy(batch["observation"]).masked_fill(~batch["allowed"], -torch.inf)
            logp = logits.log_softmax(-1)
            entropy = -(logp.exp() * logp)  # leak
        else:
            logits = policy(batch["observation"]).masked_fill(~batch["allowed"], -1e30)
            logp = logits.log_softmax(-1).masked_fill(~batch["allowed"], 0)
            probability = logits.softmax(-1).masked_fill(~batch["allowed"], 0)
            entropy = -(probability * logp)
        return -entropy.sum(-1).mean()

    return Case(step, batch)
