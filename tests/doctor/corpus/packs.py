"""Statistics and positions of a whole row instead of each packed document."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.pairs import Case, pair

IDS = torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9], [4, 8, 9, 3, 2, 10, 11, 5]])
LABELS = torch.tensor([[3, 4, -100, 6, 7, 8, 9, -100], [8, 9, 3, 2, -100, 11, 5, -100]])
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]])
CONCATENATED = torch.tensor([2, 3, 4, 5, 6, 7, 8, 9, 10])
BOUNDS = torch.tensor([0, 3, 7, 9], dtype=torch.int32)
ROW = torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
NEXT_IN_ROW = torch.tensor([[3, 4, -100, 6, 7, 8, 9, -100]])


@pair(
    "document-leak",
    "none found; max pooling over time of a packed row, one pooled vector for several documents",
)
def max_over_the_pack(wrong):
    """The maximum over time is over the whole row, one summary for all packed documents."""
    embed, head = nn.Embedding(12, 6), nn.Linear(12, 12)
    batch = {
        "input_ids": IDS,
        "example": torch.tensor([[7, 7, 7, 3, 3, 3, 3, 3], [5, 5, 5, 5, 5, 9, 9, 9]]),
        "labels": LABELS,
    }

    def step(batch):
        if wrong:
            hidden = embed(batch["input_ids"])
            topic = hidden.amax(1, keepdim=True).expand_as(hidden)  # leak
        else:
            hidden, example = embed(batch["input_ids"]), batch["example"]
            same = example[:, :, None] == example[:, None]
            topic = hidden[:, None].masked_fill(~same[..., None], float("-inf")).amax(2)
        logits = head(torch.cat([hidden, topic], -1))
        return F.cross_entropy(logits.transpose(1, 2), batch["labels"])

    return Case(step, batch, documents={"input_ids": batch["example"]})


@pair("document-leak", "none found; mean pooling of packed documents, cu_seqlens off by one, inclusive end")
def mean_of_one_token_too_many(wrong):
    """The bounds of packed documents are treated as inclusive, and each mean includes the first token of the next."""
    embed, head = nn.Embedding(12, 6), nn.Linear(6, 3)
    batch = {"input_ids": CONCATENATED, "cu_seqlens": BOUNDS, "labels": torch.tensor([1, 0, 2])}

    def step(batch):
        hidden, bounds = embed(batch["input_ids"]).tanh(), batch["cu_seqlens"].tolist()
        if wrong:
            means = [hidden[first : last + 1].mean(0) for first, last in pairwise(bounds)]  # leak
        else:
            means = [hidden[first:last].mean(0) for first, last in pairwise(bounds)]
        return F.cross_entropy(head(torch.stack(means)), batch["labels"])

    return Case(step, batch)


@pair("document-leak", "none found; instance norm, mean and deviation over time of packed sequences")
def standardised_over_the_pack(wrong):
    """Features are standardised over the time axis of a packed row, with one mean and deviation for all recordings."""
    encode, head = nn.Linear(3, 6), nn.Linear(6, 1)
    batch = {
        "frames": torch.randn(2, 8, 3),
        "recording": DOCUMENTS,
        "targets": torch.randn(2, 8),
        "loss_mask": torch.tensor([[1, 1, 1, 1, 0, 1, 1, 1], [1, 1, 0, 1, 1, 1, 1, 1]]),
    }

    def loss_of(batch, hidden):
        errors = (head(hidden.tanh()).squeeze(-1) - batch["targets"]).square()
        return (errors * batch["loss_mask"]).sum() / batch["loss_mask"].sum()

    def step(batch):
        if wrong:
            hidden = encode(batch["frames"])
            std, mean = torch.std_mean(hidden, 1, keepdim=True)  # leak
            return loss_of(batch, (hidden - mean) / (std + 1e-5))
        hidden, recording = encode(batch["frames"]), batch["recording"]
        same = (recording[:, :, None] == recording[:, None]).to(hidden.dtype)
        same = same / same.sum(-1, keepdim=True)
        centred = hidden - same @ hidden
        return loss_of(batch, centred / ((same @ centred.square()).sqrt() + 1e-5))

    return Case(step, batch, documents={"frames": batch["recording"]})


@pair(
    "document-alone",
    "none found; packing, loss divided by the length of the pack instead of the tokens with a label",
)
def divided_by_the_length_of_the_pack(wrong):
    """The sum of the losses is divided by the length of the packed row, not by the number of its labels."""
    embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
    batch = {
        "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 0], [4, 8, 9, 3, 2, 10, 0, 0]]),
        "segment_ids": torch.tensor([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 2, 2, 0, 0]]),
        "labels": torch.tensor([[3, 4, -100, 6, 7, 8, -100, -100], [8, 9, 3, -100, 10, -100, -100, -100]]),
    }

    def step(batch):
        logits = head(embed(batch["input_ids"]))
        total = F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="sum")
        if wrong:
            return total / batch["labels"].numel()  # leak
        return total / (batch["labels"] != -100).sum()

    return Case(step, batch)


@pair("document-alone", "none found; looked for positions that run on over packed documents")
def positions_counted_on(wrong):
    """Positions do not restart at each packed document."""
    embed, position, head = nn.Embedding(12, 6), nn.Embedding(8, 6), nn.Linear(6, 12)
    batch = {"input_ids": ROW, "position_ids": POSITIONS, "labels": NEXT_IN_ROW}

    def step(batch):
        if wrong:
            ids = batch["input_ids"]
            hidden = embed(ids) + position(torch.arange(ids.shape[1]))  # leak
        else:
            hidden = embed(batch["input_ids"]) + position(batch["position_ids"])
        return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])

    return Case(step, batch)


@pair("document-alone", "none found; looked for a rotary base scaled by the length of a pack")
def rotated_by_the_length_of_the_pack(wrong):
    """The base of rotary positions is scaled by the length of the packed row, not of the document."""
    embed, qkv, head = nn.Embedding(12, 4), nn.Linear(4, 12), nn.Linear(4, 12)
    batch = {"input_ids": ROW, "position_ids": POSITIONS, "labels": NEXT_IN_ROW}

    def loss_of(batch, lengths):
        q, k, v = qkv(embed(batch["input_ids"])).chunk(3, -1)
        base = 10 * (lengths / 2).clamp(min=1) ** 2  # trained with 2 tokens
        angles = batch["position_ids"][..., None] / base[..., None] ** torch.tensor([0.0, 0.5])
        turn = torch.polar(torch.ones_like(angles), angles)
        q, k = (
            torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (2, 2))) * turn).flatten(2)
            for x in (q, k)
        )
        document = (batch["position_ids"] == 0).cumsum(1)
        allowed = (document[:, :, None] == document[:, None]).tril()
        hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])

    def step(batch):
        if wrong:
            tokens = batch["input_ids"].shape[1]
            return loss_of(batch, torch.full((1, tokens), float(tokens)))  # leak
        document = (batch["position_ids"] == 0).cumsum(1)
        return loss_of(batch, (document[:, :, None] == document[:, None]).sum(-1).float())

    return Case(step, batch)


@pair("document-alone", "none found; looked for attention scaled by the logarithm of a pack's length")
def temperature_of_the_whole_pack(wrong):
    """Attention is scaled by the logarithm of the packed row's length, not the document's."""
    embed, qkv, head = nn.Embedding(12, 6), nn.Linear(6, 18), nn.Linear(6, 12)
    batch = {"input_ids": IDS, "document_ids": DOCUMENTS, "labels": LABELS}

    def step(batch):
        q, k, v = qkv(embed(batch["input_ids"])).chunk(3, -1)
        same = batch["document_ids"][:, :, None] == batch["document_ids"][:, None]
        q = q * torch.tensor(q.shape[1]).log() if wrong else q * same.sum(-1, keepdim=True).log()  # leak
        hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=same)
        return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])

    return Case(step, batch)


@pair(
    "document-alone",
    "none found; weighted mean pooling by position in packed or padding-free batches, position weights not reset",
)
def weighed_by_the_place_in_the_row(wrong):
    """A mean weights later tokens more, with positions from the start of the row, not of the document."""
    embed, head = nn.Embedding(12, 6), nn.Linear(6, 3)
    batch = {"input_ids": CONCATENATED, "cu_seqlens": BOUNDS, "labels": torch.tensor([1, 0, 2])}

    def loss_of(batch, weights):
        hidden, sizes = embed(batch["input_ids"]), batch["cu_seqlens"].diff().tolist()
        parts = zip(hidden.split(sizes), weights.split(sizes), strict=True)
        means = [weight @ part / weight.sum() for part, weight in parts]
        return F.cross_entropy(head(torch.stack(means)), batch["labels"])

    def step(batch):
        if wrong:
            weights = torch.arange(1.0, 1 + len(batch["input_ids"]))  # leak
        else:
            sizes = batch["cu_seqlens"].diff().tolist()
            weights = torch.cat([torch.arange(1.0, 1 + size) for size in sizes])
        return loss_of(batch, weights)

    return Case(step, batch)
