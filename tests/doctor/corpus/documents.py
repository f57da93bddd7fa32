"""Packed documents that influence each other, or are not as they would be alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.pairs import Case, pair

IDS = torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9], [4, 8, 9, 3, 2, 10, 11, 5]])
LABELS = torch.tensor([[3, 4, -100, 6, 7, 8, 9, -100], [8, 9, 3, 2, -100, 11, 5, -100]])
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]])
PADDED = torch.tensor([[2, 3, 4, 5, 6, 7, 8, 0], [4, 8, 9, 3, 2, 10, 0, 0]])
SEGMENTS = torch.tensor([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 2, 2, 0, 0]])
BOUNDS = torch.tensor([0, 3, 7, 9], dtype=torch.int32)


@pair("padding-leak", "unslothai/unsloth#1207")
def packed_documents_attend(wrong):
    """A row is filled with another document, and later text attends to it."""
    embed, qkv, head = nn.Embedding(12, 6), nn.Linear(6, 18), nn.Linear(6, 12)
    batch = {
        "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7], [8, 9, 3, 2, 10, 11]]),
        "document": torch.tensor([[0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]]),
        "labels": torch.tensor([[-100, -100, 5, 6, 7, 1], [-100, -100, -100, 10, 11, 1]]),
    }

    def step(batch):
        q, k, v = qkv(embed(batch["input_ids"])).chunk(3, -1)
        if wrong:
            hidden = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # leak
        else:
            document = batch["document"]
            causal = torch.ones(q.size(1), q.size(1)).bool().tril()
            allowed = (document[:, :, None] == document[:, None]) & causal
            hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])

    return Case(step, batch, padding={"input_ids": "document"})


@pair("document-leak", "huggingface/nanoVLM#204")
def documents_by_positions_alone(wrong):
    """Positions restart with each packed document, but attention is only causal and includes earlier documents."""
    embed, position = nn.Embedding(12, 6), nn.Embedding(8, 6)
    qkv, head = nn.Linear(6, 18), nn.Linear(6, 12)
    batch = {
        "input_ids": IDS,
        "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 0, 1, 2]]),
        "labels": LABELS,
    }

    def step(batch):
        q, k, v = qkv(embed(batch["input_ids"]) + position(batch["position_ids"])).chunk(3, -1)
        if wrong:
            hidden = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # leak
        else:
            document = (batch["position_ids"] == 0).cumsum(1)
            allowed = (document[:, :, None] == document[:, None]).tril()
            hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])

    return Case(step, batch)


@pair("document-leak", "THUDM/slime#1686")
def linear_attention_over_documents(wrong):
    """The running sums of linear attention continue from one packed document to the next."""
    embed, qkv, head = nn.Embedding(12, 4), nn.Linear(4, 12), nn.Linear(4, 12)
    batch = {
        "input_ids": torch.tensor([2, 3, 4, 5, 6, 7, 8, 9, 10]),
        "cu_seqlens": BOUNDS,
        "labels": torch.tensor([3, 4, -100, 6, 7, 8, -100, 10, -100]),
    }

    def read(q, states, norms):
        return torch.einsum("td,tde->te", q, states) / (q * norms).sum(-1, keepdim=True)

    def step(batch):
        q, k, v = qkv(embed(batch["input_ids"])).chunk(3, -1)
        if wrong:
            q, k = F.elu(q) + 1, F.elu(k) + 1
            states = (k[:, :, None] * v[:, None]).cumsum(0)  # leak
            norms = k.cumsum(0)  # leak
        else:
            q, k, sizes = F.elu(q) + 1, F.elu(k) + 1, batch["cu_seqlens"].diff().tolist()
            states = torch.cat([part.cumsum(0) for part in (k[:, :, None] * v[:, None]).split(sizes)])
            norms = torch.cat([part.cumsum(0) for part in k.split(sizes)])
        return F.cross_entropy(head(read(q, states, norms)), batch["labels"])

    return Case(step, batch)


@pair("document-leak", "pytorch/torchtitan#4075")
def next_token_of_another_document(wrong):
    """Labels are shifted along the whole row, and the last token of a document must predict the first of the next."""
    embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
    batch = {
        "input_ids": PADDED,
        "segment_ids": SEGMENTS,
        "labels": torch.tensor([[2, 3, 4, 5, 6, 7, 8, -100], [4, 8, 9, 3, 2, 10, -100, -100]]),
    }

    def step(batch):
        if wrong:
            logits = head(embed(batch["input_ids"]).tanh())
            return F.cross_entropy(logits[:, :-1].transpose(1, 2), batch["labels"][:, 1:])  # leak
        logits, segment = head(embed(batch["input_ids"]).tanh()), batch["segment_ids"]
        labels = batch["labels"][:, 1:].clone()
        labels[segment[:, 1:] != segment[:, :-1]] = -100
        return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels)

    return Case(step, batch)


@pair("document-leak", "huggingface/transformers#46588")
def short_convolution_over_documents(wrong):
    """A short causal convolution over a packed row reads the last tokens of the previous document."""
    embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
    conv = nn.Conv1d(6, 6, 3, padding=2, groups=6)
    batch = {"input_ids": IDS, "seq_idx": DOCUMENTS, "labels": LABELS}

    def step(batch):
        if wrong:
            hidden = embed(batch["input_ids"]).transpose(1, 2)
            mixed = F.silu(conv(hidden)[..., : hidden.shape[-1]])  # leak
            return F.cross_entropy(head(mixed.transpose(1, 2)).transpose(1, 2), batch["labels"])
        hidden, seq_idx = embed(batch["input_ids"]).transpose(1, 2), batch["seq_idx"]
        mixed = conv.bias[:, None].expand_as(hidden)
        for back in range(3):
            same = F.pad(seq_idx[:, : 8 - back], (back, 0), value=-1) == seq_idx
            moved = F.pad(hidden[..., : 8 - back], (back, 0))
            mixed = mixed + conv.weight[:, :, 2 - back] * moved.masked_fill(~same[:, None], 0)
        return F.cross_entropy(head(F.silu(mixed).transpose(1, 2)).transpose(1, 2), batch["labels"])

    return Case(step, batch)


@pair("document-leak", "NovaSky-AI/SkyRL#2056")
def states_walk_over_documents(wrong):
    """A recurrent network carries its state from one packed document to the next."""
    embed, cell, head = nn.Embedding(12, 6), nn.GRUCell(6, 6), nn.Linear(6, 12)
    batch = {"input_ids": IDS, "seq_idx": DOCUMENTS, "labels": LABELS}

    def step(batch):
        if wrong:
            state, outputs = torch.zeros(2, 6), []
            for x in embed(batch["input_ids"]).unbind(1):  # leak
                state = cell(x, state)
                outputs.append(state)
        else:
            state, outputs, seq_idx = torch.zeros(2, 6), [], batch["seq_idx"]
            for place, x in enumerate(embed(batch["input_ids"]).unbind(1)):
                begins = seq_idx[:, place] != seq_idx[:, max(place - 1, 0)]
                state = cell(x, torch.where(begins[:, None], 0.0, state))
                outputs.append(state)
        return F.cross_entropy(head(torch.stack(outputs, 1)).transpose(1, 2), batch["labels"])

    return Case(step, batch)


@pair("document-leak", "BlinkDL/RWKV-LM#291")
def token_shift_over_documents(wrong):
    """A token shift mixes each token with the previous one, across the boundaries of packed documents."""
    embed, head = nn.Embedding(12, 6), nn.Linear(6, 12)
    mix = nn.Parameter(torch.rand(6))
    batch = {
        "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9, 10]]),
        "cu_seqlens": BOUNDS,
        "labels": torch.tensor([[3, 4, -100, 6, 7, 8, -100, 10, -100]]),
    }

    def step(batch):
        hidden = embed(batch["input_ids"])
        if wrong:
            before = F.pad(hidden[:, :-1], (0, 0, 1, 0))  # leak
            hidden = torch.lerp(before, hidden, mix)  # leak
        else:
            before = F.pad(hidden[:, :-1], (0, 0, 1, 0))
            begins = torch.zeros(hidden.shape[:2], dtype=torch.bool)
            begins[:, batch["cu_seqlens"][:-1].long()] = True
            hidden = torch.lerp(before.masked_fill(begins[..., None], 0), hidden, mix)
        return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])

    return Case(step, batch)
