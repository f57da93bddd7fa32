"""BERT from a configuration learns masked words and which of two texts is which, on padded pairs of texts.

After the pretraining examples of Hugging Face's transformers, without a tokenizer from the network.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig, BertModel

PAD, CLS, SEP, MASK, FIRST = 0, 1, 2, 3, 4
PAIRS = [
    ("the weather is fine", "we go out", 1),
    ("it rains", "the cat has two eyes and a tail", 0),
    ("he reads", "a book", 1),
]
WORDS = sorted({word for one, two, _ in PAIRS for word in (one + " " + two).split()})


def tokenized(text):
    return [FIRST + WORDS.index(word) for word in text.split()]


def encoded(one, two):
    """[CLS] one [SEP] two [SEP], and which of the two each token is of."""
    first, second = [CLS, *tokenized(one), SEP], [*tokenized(two), SEP]
    return first + second, [0] * len(first) + [1] * len(second)


class MaskingCollator:
    """Pads, hides a share of the words, and remembers them as labels; everything else has the label -100."""

    def __init__(self, share=0.4, seed=0):
        self.share, self.draw = share, torch.Generator().manual_seed(seed)

    def __call__(self, pairs):
        rows = [encoded(one, two) for one, two, _ in pairs]
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.full((len(rows), longest), PAD)
        types, mask = torch.zeros_like(ids), torch.zeros_like(ids)
        for i, (row, kinds) in enumerate(rows):
            ids[i, : len(row)], types[i, : len(row)] = torch.tensor(row), torch.tensor(kinds)
            mask[i, : len(row)] = 1
        words = ids >= FIRST
        hidden = words & (torch.rand(ids.shape, generator=self.draw) < self.share)
        labels = ids.masked_fill(~hidden, -100)
        return {
            "input_ids": ids.masked_fill(hidden, MASK),
            "token_type_ids": types,
            "attention_mask": mask,
            "labels": labels,
            "follows": torch.tensor([follows for *_, follows in pairs]),
        }


class Pretraining(nn.Module):
    """An encoder with two heads: words, on a table that it shares with the input, and pairs."""

    def __init__(self, config):
        super().__init__()
        self.encoder = BertModel(config, add_pooling_layer=False)
        width = config.hidden_size
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.word_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.pair = nn.Sequential(nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, batch):
        hidden = self.encoder(
            input_ids=batch["input_ids"],
            token_type_ids=batch["token_type_ids"],
            attention_mask=batch["attention_mask"],
        ).last_hidden_state
        table = self.encoder.get_input_embeddings().weight
        words = self.transform(hidden) @ table.T + self.word_bias
        real = batch["attention_mask"].bool()[..., None]
        mean = hidden.masked_fill(~real, 0).sum(1) / real.sum(1).clamp(min=1)
        return words, self.pair(torch.cat([hidden[:, 0], mean], -1))


config = BertConfig(
    vocab_size=FIRST + len(WORDS),
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=32,
)
model = Pretraining(config)
batch = MaskingCollator()(PAIRS)


def step(batch):
    """Both losses: the mean over hidden words, and the mean over pairs."""
    words, pairs = model(batch)
    hidden = batch["labels"] != -100
    each = F.cross_entropy(words.transpose(1, 2), batch["labels"], reduction="sum")
    return each / hidden.sum().clamp(min=1) + F.cross_entropy(pairs, batch["follows"])


def train(steps=3):
    """No decay on biases and norms, as in the paper."""
    collate = MaskingCollator(seed=1)
    decayed = [p for p in model.parameters() if p.ndim > 1]
    spared = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": spared, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        step(collate(PAIRS)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
