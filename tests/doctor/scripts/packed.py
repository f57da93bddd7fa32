"""Packed rows: several documents in one, known from each convention."""

from __future__ import annotations

import inspect

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.scripts.script import Script, program

#: documents of 3, 4, 2 and of 5, 4 tokens
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 1, 1, 1, 1]])
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 4, 0, 1, 2, 3]])
BOUNDS = torch.tensor([0, 3, 7, 9], dtype=torch.int32)


def packed(**more):
    """Ids (2, 9) and the label of each token, -100 at the first of a document."""
    text = torch.randint(1, 20, (2, 9))
    labels = torch.where(POSITIONS == 0, -100, text)
    return {"input_ids": text, "labels": labels, **more}


def next_token(out, batch):
    return F.cross_entropy(out[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=-100)


def same_document(documents):
    causal = torch.ones(documents.shape[1], documents.shape[1], dtype=torch.bool).tril()
    return (documents[:, :, None] == documents[:, None, :]) & causal


def by_positions(position_ids):
    return (position_ids == 0).cumsum(1)


def attends(name, given, to_documents):
    """An attention of packed rows with a causal mask only."""

    def make(wrong):
        table, head = nn.Embedding(20, 8), nn.Linear(8, 20)
        batch = packed(**{name: given})

        def forward(input_ids, told):
            q = table(input_ids)
            documents = torch.zeros_like(input_ids) if wrong else to_documents(told)
            hidden = F.scaled_dot_product_attention(q, q, q, attn_mask=same_document(documents))  # leak
            return head(hidden)

        forward.__signature__ = inspect.Signature(
            [inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD) for key in ("input_ids", name)]
        )
        return Script(batch, forward, next_token)

    make.__name__ = f"attention_of_{name}"
    return make


for _name, _given, _read in (
    ("position_ids", POSITIONS, by_positions),
    ("seq_idx", DOCUMENTS, lambda told: told),
    ("segment_ids", DOCUMENTS + 1, lambda told: told),
    ("document_ids", DOCUMENTS, lambda told: told),
):
    program("document-leak")(attends(_name, _given, _read))


@program("document-leak")
def bounds_of_documents(wrong):
    table, head = nn.Embedding(20, 8), nn.Linear(8, 20)
    text = torch.randint(1, 20, (1, 9))
    batch = {"input_ids": text, "labels": torch.where(POSITIONS[:1] == 0, -100, text), "cu_seqlens": BOUNDS}

    def forward(input_ids, cu_seqlens):
        q = table(input_ids)
        starts = torch.zeros(9, dtype=torch.long).index_fill(0, cu_seqlens[:-1].long(), 1)
        documents = torch.zeros_like(input_ids) if wrong else starts.cumsum(0)[None]
        hidden = F.scaled_dot_product_attention(q, q, q, attn_mask=same_document(documents))  # leak
        return head(hidden)

    return Script(batch, forward, next_token)


@program("document-leak")
def tokens_shifted_across_the_border(wrong):
    table, head = nn.Embedding(20, 8), nn.Linear(8, 20)

    def forward(input_ids, position_ids):
        hidden = table(input_ids)
        before = F.pad(hidden, (0, 0, 1, 0))[:, :-1]
        if not wrong:
            before = before * (position_ids != 0)[..., None]
        mixed = hidden + before  # leak
        return head(mixed)

    return Script(packed(position_ids=POSITIONS), forward, next_token)


@program("document-leak")
def states_of_a_gru_across_the_border(wrong):
    table, gru, head = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 20)

    def forward(input_ids, seq_idx):
        if wrong:
            return head(gru(table(input_ids))[0])  # leak
        rows = []
        for text, documents in zip(input_ids, seq_idx, strict=True):
            parts = [gru(table(text[documents == d])[None])[0][0] for d in range(int(documents.max()) + 1)]
            rows.append(torch.cat(parts))
        return head(torch.stack(rows))

    return Script(packed(seq_idx=DOCUMENTS), forward, next_token)


@program("document-alone", ways=("examine",))
def positions_counted_on(wrong):
    table, places, head = nn.Embedding(20, 8), nn.Embedding(9, 8), nn.Linear(8, 20)

    def forward(input_ids, seq_idx):
        at = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        if not wrong:
            first = torch.ones_like(seq_idx, dtype=torch.bool)
            first[:, 1:] = seq_idx[:, 1:] != seq_idx[:, :-1]
            at = at - torch.where(first, at, 0).cummax(1).values
        placed = places(at)  # leak
        return head((table(input_ids) + placed).tanh())

    return Script(packed(seq_idx=DOCUMENTS), forward, next_token)
