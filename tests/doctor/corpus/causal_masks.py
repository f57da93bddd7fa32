"""Attention and routing that see the future."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.pairs import Case, lasting, pair

IDS = torch.tensor([[2, 3, 4, 5, 6, 7], [8, 9, 3, 2, 10, 11]])
NEXT = torch.tensor([[3, 4, 5, 6, 7, 1], [9, 3, 2, 10, 11, 1]])


@pair("future-leak", "rasbt/LLMs-from-scratch#1062")
def causal_mask_transposed(wrong):
    """A mask of forbidden positions is passed to a function that expects allowed ones."""
    embed, qkv, head = nn.Embedding(12, 8), nn.Linear(8, 24), nn.Linear(8, 12)
    batch = {
        "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8], [8, 9, 3, 2, 10, 11, 4]]),
        "labels": torch.tensor([[3, 4, 5, 6, 7, 8, 1], [9, 3, 2, 10, 11, 4, 1]]),
    }

    def heads_of(batch):
        mixed = qkv(embed(batch["input_ids"]))
        return mixed.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)

    def step(batch):
        q, k, v = heads_of(batch)
        if wrong:
            mask = torch.ones(q.size(2), q.size(2), dtype=torch.bool).triu()
            hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # leak
        else:
            mask = torch.ones(q.size(2), q.size(2), dtype=torch.bool).tril()
            hidden = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        logits = head(hidden.transpose(1, 2).flatten(2))
        return F.cross_entropy(logits.transpose(1, 2), batch["labels"])

    return Case(step, batch, causal=True)


@pair("future-leak", "piotrpiekos/MoSA#3")
def experts_choose_their_tokens(wrong):
    """Each expert takes the tokens with its highest scores, so that later tokens push out earlier ones."""
    embed, router, head = nn.Embedding(12, 6), nn.Linear(6, 2), nn.Linear(6, 12)
    experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
    batch = {
        "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7, 8, 9], [8, 9, 3, 2, 10, 11, 4, 5]]),
        "labels": torch.tensor([[3, 4, 5, 6, 7, 8, 9, 1], [9, 3, 2, 10, 11, 4, 5, 1]]),
    }

    def step(batch):
        x = embed(batch["input_ids"])
        out, scores = x, router(x).softmax(-1)
        if wrong:
            for expert, score in zip(experts, scores.unbind(-1), strict=True):
                chosen = score.topk(4, dim=1).indices  # leak
                taken = torch.zeros_like(score).scatter(1, chosen, 1.0)
                out = out + (taken * score)[..., None] * expert(x)
        else:
            chosen = F.one_hot(scores.argmax(-1), 2)  # each token chooses its expert
            for expert, score, taken in zip(experts, scores.unbind(-1), chosen.unbind(-1), strict=True):
                out = out + (taken * score)[..., None] * expert(x)
        return F.cross_entropy(head(out).transpose(1, 2), batch["labels"])

    return Case(step, batch, causal=True)


@pair("future-leak", "huggingface/transformers#48745")
def future_without_causal_mask(wrong):
    """A language model masks padding only, so that each token attends to the ones it predicts."""
    embed, head = nn.Embedding(12, 8), nn.Linear(8, 12)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    batch = {
        "input_ids": torch.tensor([[2, 3, 4, 5, 6, 7], [8, 9, 3, 2, 0, 0], [4, 11, 5, 3, 9, 0]]),
        "attention_mask": lasting(6, 4, 5).long(),
        "labels": torch.tensor([[3, 4, 5, 6, 7, 1], [9, 3, 2, 1, -100, -100], [11, 5, 3, 9, 1, -100]]),
    }

    def step(batch):
        padding = batch["attention_mask"] == 0
        if wrong:
            hidden = layer(embed(batch["input_ids"]), src_key_padding_mask=padding)  # leak
        else:
            later = torch.ones(padding.size(1), padding.size(1)).bool().triu(1)
            hidden = layer(embed(batch["input_ids"]), src_mask=later, src_key_padding_mask=padding)
        return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])

    return Case(step, batch, causal=True)


@pair("future-leak", "Lightning-AI/pytorch-lightning#20920")
def memory_of_the_same_text(wrong):
    """The decoder is causal, but attends to an encoding of the same text, which contains the next word."""
    embed, head = nn.Embedding(12, 8), nn.Linear(8, 12)
    decoder = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    batch = {"input_ids": IDS, "labels": NEXT}

    def step(batch):
        x = embed(batch["input_ids"])
        later = torch.ones(x.size(1), x.size(1)).triu(1).bool()
        if wrong:
            hidden = decoder(x, memory=x, tgt_mask=later)  # leak
        else:
            hidden = decoder(x, memory=x, tgt_mask=later, memory_mask=later)
        return F.cross_entropy(head(hidden).transpose(1, 2), batch["labels"])

    return Case(step, batch, causal=True)


@pair("future-leak", "Shwai-He/MEO#2")
def routed_by_the_mean_of_the_document(wrong):
    """The experts of a packed document are weighted by the mean of its tokens, including later ones."""
    embed, router, head = nn.Embedding(12, 6), nn.Linear(6, 2), nn.Linear(6, 12)
    experts = nn.Linear(6, 12)
    batch = {
        "input_ids": torch.tensor([2, 3, 4, 5, 6, 7, 8, 9, 3, 2, 10, 11]),
        "seq_idx": torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
        "labels": torch.tensor([3, 4, 5, 6, -100, 8, 9, 3, 2, 10, 11, -100]),
    }

    def loss(x, gates, batch):
        hidden = x + (experts(x).unflatten(-1, (2, 6)) * gates[..., None]).sum(-2)
        return F.cross_entropy(head(hidden), batch["labels"])

    def step(batch):
        if wrong:
            x, document = embed(batch["input_ids"]), batch["seq_idx"]
            sums = torch.zeros(2, 6).index_add(0, document, x)  # leak
            means = sums / document.bincount()[:, None]
            return loss(x, router(means).softmax(-1)[document], batch)
        x = embed(batch["input_ids"])
        return loss(x, router(x).softmax(-1), batch)

    return Case(step, batch, causal=True)


@pair("future-leak", "karpathy/minGPT#75")
def scores_below_the_causal_mask(wrong):
    """A causal mask adds a value that is not low enough if past scores are low."""
    embed, head = nn.Embedding(12, 8), nn.Linear(8, 12)
    query, key, value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
    batch = {"input_ids": IDS, "labels": NEXT}

    def masked_scores(x, lowest):
        scores = query(x) @ key(x).transpose(1, 2) / 8**0.5
        mask = torch.zeros_like(scores).masked_fill(torch.ones_like(scores).triu(1) == 1, lowest)
        return scores + mask

    def step(batch):
        x = embed(batch["input_ids"])
        if wrong:
            weights = masked_scores(x, -10.0).softmax(-1)  # leak
        else:
            weights = masked_scores(x, -torch.inf).softmax(-1)
        return F.cross_entropy(head(weights @ value(x)).transpose(1, 2), batch["labels"])

    return Case(step, batch, causal=True)


@pair("future-leak", "awslabs/gluonts#1401")
def scores_of_the_future_near_zero(wrong):
    """A forecaster fills the scores of the future with 1e-9 instead of -1e9, and hardly masks it."""
    embed, query, key, head = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)
    torch.manual_seed(1)
    batch = {
        "series": torch.randn(2, 8, 3),
        "target": torch.randn(2, 8),
        "target_weight": torch.tensor([[0.0, 1, 1, 1, 1, 1, 1, 1], [0.0, 0, 0, 1, 1, 1, 1, 2]]),
    }

    def error(predicted, batch):
        weight = batch["target_weight"]
        return ((predicted.squeeze(-1) - batch["target"]) ** 2 * weight).sum() / weight.sum()

    def step(batch):
        x = embed(batch["series"])
        later = torch.ones(x.size(1), x.size(1)).triu(1).bool()
        if wrong:
            weights = (query(x) @ key(x).mT).masked_fill(later, 1e-9).softmax(-1)
            return error(head(weights @ x), batch)  # leak
        weights = (query(x) @ key(x).mT).masked_fill(later, -1e9).softmax(-1)
        return error(head(weights @ x), batch)

    return Case(step, batch, causal=True)


@pair("future-leak", "haohy/TCAN#7")
def softmax_over_the_queries(wrong):
    """Scores are masked correctly, but the softmax runs over the queries, most of them later."""
    embed, head = nn.Embedding(12, 8), nn.Linear(8, 12)
    query, key, value = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
    batch = {"input_ids": IDS, "labels": NEXT}

    def masked_scores(x):
        scores = query(x) @ key(x).transpose(1, 2) / 8**0.5
        return scores.masked_fill(torch.ones_like(scores).triu(1) == 1, -torch.inf)

    def step(batch):
        x = embed(batch["input_ids"])
        weights = masked_scores(x).softmax(1) if wrong else masked_scores(x).softmax(2)  # leak
        return F.cross_entropy(head(weights @ value(x)).transpose(1, 2), batch["labels"])

    return Case(step, batch, causal=True)
