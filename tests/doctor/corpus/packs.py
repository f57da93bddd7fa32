"""Statistics and positions of a whole row instead of each packed document."""

from __future__ import annotations

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
