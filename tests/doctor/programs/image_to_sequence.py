"""Captions of pictures: a convolutional encoder, a decoder that attends to its cells, captions of unequal length.

After the captioning example of PyTorch's examples, with attention and doubly stochastic regularisation.
"""

import torch
import torch.nn.functional as F
from torch import nn

CAPTIONS = ["a red square", "two blue circles on a field", "nothing", "a circle left of a square"]
PAD, START, END = 0, 1, 2
WORDS = ["<pad>", "<start>", "<end>", *sorted({word for text in CAPTIONS for word in text.split()})]


def collate(pictures, captions):
    """Pictures as they are; captions with a start, an end and padding."""
    rows = [[START, *(WORDS.index(word) for word in text.split()), END] for text in captions]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
    return {
        "pictures": pictures,
        "captions": ids,
        "caption_lengths": torch.tensor([len(row) for row in rows]),
    }


class Cells(nn.Module):
    """A small convolutional network whose last map is read as a list of cells."""

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1),
            nn.GroupNorm(2, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.GroupNorm(2, width),
            nn.ReLU(),
        )

    def forward(self, pictures):
        return self.layers(pictures).flatten(2).transpose(1, 2)


class Captioner(nn.Module):
    """Words one after the other, each with a look at all cells."""

    def __init__(self, width=8):
        super().__init__()
        self.cells = Cells(width)
        self.embed = nn.Embedding(len(WORDS), width, padding_idx=PAD)
        self.first_h, self.first_c = nn.Linear(width, width), nn.Linear(width, width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        self.rnn = nn.LSTMCell(2 * width, width)
        self.out = nn.Linear(width, len(WORDS))

    def attend(self, state, cells):
        scores = (self.key(cells) @ self.query(state)[..., None]).squeeze(-1)
        weights = scores.softmax(-1)
        return weights, (weights[..., None] * cells).sum(1)

    def forward(self, pictures, words):
        cells = self.cells(pictures)
        mean = cells.mean(1)  # over cells, of which every picture has as many
        state, memory = self.first_h(mean).tanh(), self.first_c(mean).tanh()
        logits, looks = [], []
        for word in self.embed(words).unbind(1):
            weights, seen = self.attend(state, cells)
            seen = self.gate(state).sigmoid() * seen
            state, memory = self.rnn(torch.cat([word, seen], -1), (state, memory))
            logits.append(self.out(state))
            looks.append(weights)
        return torch.stack(logits, 1), torch.stack(looks, 1)


model = Captioner()
batch = collate(torch.randn(4, 3, 8, 8), CAPTIONS)
padding = {"captions": torch.arange(batch["captions"].size(1)) < batch["caption_lengths"][:, None]}


def step(batch):
    """Cross entropy of the words, and a penalty if some cells are never looked at."""
    captions, lengths = batch["captions"], batch["caption_lengths"]
    logits, looks = model(batch["pictures"], captions[:, :-1])
    real = torch.arange(1, captions.size(1)) < lengths[:, None]
    words = F.cross_entropy(logits[real], captions[:, 1:][real], reduction="sum")
    seen = looks.masked_fill(~real[..., None], 0).sum(1)
    share = seen / (lengths[:, None] - 1).clamp(min=1)
    return words / real.sum() + 0.1 * (1 - share * seen.size(1)).square().mean()


def train(steps=3):
    """The usual loop."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        step(batch).backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        optimizer.step()
