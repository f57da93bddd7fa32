"""Attention that looks at padding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.pairs import Case, lasting, pair


@pair("padding-leak", "TransformerLensOrg/TransformerLens#319")
def additive_minus_ten_thousand(wrong):
    """A large negative number instead of minus infinity: a padded key with a large score still wins."""
    query, key, value = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    batch = {"x": torch.randn(3, 5, 4), "mask": lasting(5, 3, 2)}

    def step(batch):
        if wrong:
            x, mask = batch["x"], batch["mask"]
            scores = query(x) @ key(x).transpose(1, 2) + (1 - mask[:, None].float()) * -1e4
            weights = scores.softmax(-1)  # leak
        else:
            x, mask = batch["x"].masked_fill(~batch["mask"][..., None], 0), batch["mask"]
            scores = query(x) @ key(x).transpose(1, 2)
            weights = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min).softmax(-1)
        out = (weights @ value(x)).masked_fill(~mask[..., None], 0)
        return out.square().sum() / mask.sum()

    return Case(step, batch, padding={"x": "mask"})


@pair("padding-leak", "NVIDIA/TransformerEngine#614")
def attention_with_inverted_mask(wrong):
    """True means "keep" in one interface and "drop" in the next: the encoder attends only to padding."""
    attention, head = nn.MultiheadAttention(4, 1, batch_first=True), nn.Linear(4, 1)
    batch = {
        "x": torch.randn(2, 5, 4),
        "mask": torch.arange(5) < torch.tensor([[4], [2]]),
        "y": torch.randn(2, 5),
    }

    def step(batch):
        if wrong:
            x = batch["x"]
            hidden, _ = attention(x, x, x, key_padding_mask=batch["mask"], need_weights=False)  # leak
        else:
            x = batch["x"].masked_fill(~batch["mask"][..., None], 0)
            hidden, _ = attention(x, x, x, key_padding_mask=~batch["mask"], need_weights=False)
        error = (head(hidden).squeeze(-1) - batch["y"]).masked_fill(~batch["mask"], 0)
        return error.square().sum() / batch["mask"].sum()

    return Case(step, batch, padding={"x": "mask", "y": "mask"})


@pair("padding-leak", "lean-dojo/ReProver#34")
def attention_without_mask(wrong):
    """An encoder attends to pad tokens, because it gets no mask."""
    embed = nn.Embedding(12, 8)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    head = nn.Linear(8, 12)
    batch = {
        "input_ids": torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 0, 0], [11, 2, 0, 0, 0]]),
        "attention_mask": lasting(5, 3, 2).long(),
        "labels": torch.tensor([[4, 5, 6, 7, 1], [9, 10, 1, -100, -100], [2, 1, -100, -100, -100]]),
    }

    def step(batch):
        if wrong:
            hidden = layer(embed(batch["input_ids"]))  # leak
        else:
            hidden = layer(embed(batch["input_ids"]), src_key_padding_mask=batch["attention_mask"] == 0)
        return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])

    return Case(step, batch)


@pair("padding-leak", "timeseriesAI/tsai#171")
def float_mask_is_added(wrong):
    """A mask of zeros and ones is passed to attention as floats: PyTorch adds it to scores, and 0 excludes nothing."""
    project, head = nn.Linear(4, 12), nn.Linear(4, 1)
    batch = {"x": torch.randn(3, 5, 4), "mask": lasting(5, 3, 2), "y": torch.randn(3, 5)}

    def loss_of(batch, hidden):
        error = head(hidden).squeeze(-1) - batch["y"]
        return torch.where(batch["mask"], error, 0.0).square().sum() / batch["mask"].sum()

    def step(batch):
        q, k, v = project(batch["x"]).chunk(3, -1)
        if wrong:
            allowed = batch["mask"][:, None].float()
            return loss_of(batch, F.scaled_dot_product_attention(q, k, v, attn_mask=allowed))  # leak
        allowed = batch["mask"][:, None] | ~batch["mask"].any(1)[:, None, None]
        return loss_of(batch, F.scaled_dot_product_attention(q, k, v, attn_mask=allowed))

    return Case(step, batch, padding={"x": "mask", "y": "mask"})


@pair("padding-leak", "none found; the first word after padding on the left")
def left_padded_language_model(wrong):
    """A language model padded on the left predicts the first word of a text from padding."""
    embed = nn.Embedding(12, 8)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    head = nn.Linear(8, 12)
    batch = {
        "input_ids": torch.tensor([[3, 4, 5, 6, 7], [0, 0, 8, 9, 10], [0, 0, 0, 11, 2]]),
        "attention_mask": lasting(5, 3, 2).flip(1).long(),
    }

    def logits_of(batch):
        mask, steps = batch["attention_mask"].bool(), batch["input_ids"].size(1)
        allowed = torch.ones(steps, steps).tril().bool() & mask[:, None] | torch.eye(steps).bool()
        hidden = layer(embed(batch["input_ids"]), src_mask=~allowed.repeat_interleave(2, 0))
        return head(hidden)[:, :-1].transpose(1, 2)

    def step(batch):
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)[:, 1:]
        if wrong:
            return F.cross_entropy(logits_of(batch), labels)  # leak
        labels = labels.masked_fill(batch["attention_mask"][:, :-1] == 0, -100)
        return F.cross_entropy(logits_of(batch), labels)

    return Case(step, batch)


@pair("padding-leak", "ml-explore/mlx-lm#1903")
def mask_of_the_wrong_axis(wrong):
    """The mask is applied to queries instead of keys; as both have the same length, no error is raised."""
    encode, head = nn.Linear(4, 6), nn.Linear(6, 3)
    batch = {
        "x": torch.randn(2, 5, 4),
        "mask": lasting(5, 3),
        "labels": torch.tensor([[0, 1, 2, 0, 1], [1, 2, 0, -100, -100]]),
    }

    def step(batch):
        if wrong:
            hidden = encode(batch["x"])
            scores = (hidden @ hidden.transpose(1, 2)).masked_fill(~batch["mask"][:, :, None], -1e9)
            mixed = scores.softmax(-1) @ hidden  # leak
        else:
            hidden = encode(batch["x"].masked_fill(~batch["mask"][..., None], 0))
            scores = (hidden @ hidden.transpose(1, 2)).masked_fill(~batch["mask"][:, None, :], -1e9)
            mixed = scores.softmax(-1) @ hidden
        return F.cross_entropy(head(mixed).transpose(1, 2), batch["labels"])

    return Case(step, batch, padding={"x": "mask"})


@pair("padding-leak", "facebookresearch/fairseq#318")
def memory_without_mask(wrong):
    """The decoder masks its own padding but not the encoder's."""
    table = nn.Embedding(10, 8)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    decoder = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    head = nn.Linear(8, 10)
    batch = {
        "source": torch.tensor([[3, 4, 5, 6, 7, 8], [9, 2, 3, 0, 0, 0], [4, 5, 0, 0, 0, 0]]),
        "source_mask": lasting(6, 3, 2).long(),
        "target": torch.tensor([[1, 3, 4, 5], [1, 6, 7, 2], [1, 8, 9, 3]]),
    }
    causal = torch.ones(3, 3).triu(1).bool()

    def step(batch):
        padded = batch["source_mask"] == 0
        memory = encoder(table(batch["source"]), src_key_padding_mask=padded)
        inputs, labels = table(batch["target"][:, :-1]), batch["target"][:, 1:]
        if wrong:
            hidden = decoder(inputs, memory, tgt_mask=causal)  # leak
        else:
            hidden = decoder(inputs, memory, tgt_mask=causal, memory_key_padding_mask=padded)
        return F.cross_entropy(head(hidden).transpose(1, 2), labels)

    return Case(step, batch)


@pair("padding-leak", "huggingface/transformers#28505")
def router_counts_padding(wrong):
    """The load-balancing loss of a mixture of experts counts padded tokens."""
    embed, router, head = nn.Embedding(12, 6), nn.Linear(6, 3), nn.Linear(6, 12)
    batch = {
        "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0], [9, 10, 11, 0]]),
        "attention_mask": lasting(4, 2, 3).long(),
        "labels": torch.tensor([[4, 5, 6, 1], [8, 1, -100, -100], [10, 11, 1, -100]]),
    }

    def step(batch):
        hidden = embed(batch["input_ids"])
        if wrong:
            share = router(hidden).softmax(-1).mean((0, 1))  # leak
        else:
            share = router(hidden[batch["attention_mask"] == 1]).softmax(-1).mean(0)
        loss = F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])
        return loss + 0.01 * 3 * share.square().sum()

    return Case(step, batch)


@pair("padding-leak", "none found; the mask of the other sequence")
def two_masks_mixed_up(wrong):
    """Question and context have the same length here; the question's words are pooled under the context's mask."""
    encode, head = nn.Linear(4, 6), nn.Bilinear(6, 6, 1)
    batch = {
        "question": torch.randn(3, 5, 4),
        "question_mask": lasting(3, 2, 5),
        "context": torch.randn(3, 5, 4),
        "context_mask": lasting(5, 4, 2),
        "y": torch.randn(3, 1),
    }

    def pooled(x, mask):
        total = torch.einsum("btd,bt->bd", encode(x).tanh(), mask.float())  # leak
        return total / mask.sum(1, keepdim=True).clamp(min=1)

    def step(batch):
        if wrong:
            question = pooled(batch["question"], batch["context_mask"])
        else:
            question = pooled(batch["question"], batch["question_mask"])
        context = pooled(batch["context"], batch["context_mask"])
        return (head(question, context) - batch["y"]).square().mean()

    return Case(step, batch, padding={"question": "question_mask", "context": "context_mask"})
