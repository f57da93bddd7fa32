"""A language model: a stack of causal Transformer layers over padded texts, with learnt positions and tied weights.

After PyTorch's tutorial "Language modeling with nn.Transformer".
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

TEXTS = ["the cat sat on the mat", "a dog ran", "the dog sat on a cat and ran", "a mat"]
PAD, END = 0, 1
WORDS = ["<pad>", "<end>", *sorted({word for text in TEXTS for word in text.split()})]


def encode(text):
    return [WORDS.index(word) for word in text.split()] + [END]


def collate(texts):
    """Inputs, their mask, and targets shifted by one, -100 where there is none."""
    rows = [encode(text) for text in texts]
    longest = max(len(row) for row in rows) - 1
    ids = torch.full((len(rows), longest), PAD)
    labels = torch.full((len(rows), longest), -100)
    for i, row in enumerate(rows):
        ids[i, : len(row) - 1] = torch.tensor(row[:-1])
        labels[i, : len(row) - 1] = torch.tensor(row[1:])
    return {"input_ids": ids, "attention_mask": (labels != -100).long(), "labels": labels}


class Block(nn.Module):
    """Attention and a feed-forward network, each on what was normalised before."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)

    def attend(self, x, allowed):
        b, t, width = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        mixed = self.dropout(scores.softmax(-1)) @ v
        return self.out(mixed.transpose(1, 2).reshape(b, t, width))

    def forward(self, x, allowed):
        x = x + self.dropout(self.attend(self.before_attention(x), allowed))
        return x + self.dropout(self.mlp(self.before_mlp(x)))


class LanguageModel(nn.Module):
    """Words and positions in, logits of the next word out."""

    def __init__(self, words, width=8, heads=2, layers=2, longest=32):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)
        self.apply(self.initialise)

    @staticmethod
    def initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.2)

    def forward(self, ids, mask):
        t = ids.size(1)
        x = self.words(ids) + self.positions(torch.arange(t, device=ids.device))
        causal = torch.ones(t, t, dtype=torch.bool, device=ids.device).tril()
        allowed = causal & mask.bool()[:, None, None, :]
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, allowed)
        return self.norm(x) @ self.words.weight.T


model = LanguageModel(len(WORDS))
batch = collate(TEXTS)


def step(batch):
    """Cross entropy, the mean over real words, and the entropy's share of it as a small penalty."""
    logits = model(batch["input_ids"], batch["attention_mask"])
    loss = F.cross_entropy(logits.transpose(1, 2), batch["labels"])
    real = batch["attention_mask"].bool()
    z = logits.logsumexp(-1).masked_fill(~real, 0)
    return loss + 1e-3 * z.square().sum() / real.sum()


def train(steps=3):
    """Warm-up, clipping, weight decay on matrices alone."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 2))
    for _ in range(steps):
        optimizer.zero_grad()
        step(collate(TEXTS)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
