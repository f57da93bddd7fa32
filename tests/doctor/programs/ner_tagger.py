"""Names in sentences: a BiLSTM on words and letters, a conditional random field on top, padded batches.

After PyTorch's tutorial "Advanced: making dynamic decisions and the Bi-LSTM CRF", with batches.
"""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

SENTENCES = [
    ("john lives in new york", "B O O B I"),
    ("mary smith left", "B I O"),
    ("paris is a city in france", "B O O O O B"),
    ("hello", "O"),
]
TAGS = ["O", "B", "I"]
WORDS = ["<pad>", *sorted({word for words, _ in SENTENCES for word in words.split()})]
LETTERS = "_abcdefghijklmnopqrstuvwxyz"


def collate(samples):
    """Words, the letters of each word, and tags: padded along words and along letters."""
    words = [sentence.split() for sentence, _ in samples]
    tags = [tags.split() for _, tags in samples]
    longest, widest = max(map(len, words)), max(len(word) for row in words for word in row)
    batch = {
        "words": torch.zeros(len(words), longest, dtype=torch.long),
        "letters": torch.zeros(len(words), longest, widest, dtype=torch.long),
        "tags": torch.zeros(len(words), longest, dtype=torch.long),
        "mask": torch.zeros(len(words), longest, dtype=torch.bool),
    }
    for i, row in enumerate(words):
        batch["mask"][i, : len(row)] = True
        for j, word in enumerate(row):
            batch["words"][i, j] = WORDS.index(word)
            batch["tags"][i, j] = TAGS.index(tags[i][j])
            batch["letters"][i, j, : len(word)] = torch.tensor([LETTERS.index(letter) for letter in word])
    return batch


class Letters(nn.Module):
    """A word's letters through a convolution, and the strongest answer of each filter."""

    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(len(LETTERS), width)
        self.conv = nn.Conv1d(width, width, 3, padding=1)

    def forward(self, letters):
        real = (letters != 0)[..., None]
        x = self.embed(letters).masked_fill(~real, 0).flatten(0, 1).transpose(1, 2)
        answers = self.conv(x).relu().masked_fill(~real.flatten(0, 1).transpose(1, 2), 0)
        return answers.amax(2).unflatten(0, letters.shape[:2])


class ConditionalRandomField(nn.Module):
    """Scores of sequences of tags; the loss is the log-likelihood, each sentence over its own words."""

    def __init__(self, tags):
        super().__init__()
        self.transitions = nn.Parameter(0.1 * torch.randn(tags, tags))
        self.first = nn.Parameter(0.1 * torch.randn(tags))

    def path(self, emissions, tags, mask):
        single = emissions.gather(2, tags[..., None]).squeeze(-1).masked_fill(~mask, 0).sum(1)
        pairs = self.transitions[tags[:, :-1], tags[:, 1:]].masked_fill(~mask[:, 1:], 0).sum(1)
        return single + pairs + self.first[tags[:, 0]].masked_fill(~mask[:, 0], 0)

    def partition(self, emissions, mask):
        alpha = self.first + emissions[:, 0]
        for emission, real in zip(emissions.unbind(1)[1:], mask.unbind(1)[1:], strict=True):
            onward = (alpha[:, :, None] + self.transitions + emission[:, None]).logsumexp(1)
            alpha = torch.where(real[:, None], onward, alpha)
        return alpha.logsumexp(1).masked_fill(~mask[:, 0], 0)

    def forward(self, emissions, tags, mask):
        return self.partition(emissions, mask) - self.path(emissions, tags, mask)


class Tagger(nn.Module):
    """Words and letters, a packed BiLSTM, emissions of tags."""

    def __init__(self, width=6):
        super().__init__()
        self.embed, self.letters = nn.Embedding(len(WORDS), width), Letters(width)
        self.rnn = nn.LSTM(2 * width, width, batch_first=True, bidirectional=True)
        self.emit, self.crf = nn.Linear(2 * width, len(TAGS)), ConditionalRandomField(len(TAGS))

    def forward(self, batch):
        mask = batch["mask"]
        words = self.embed(batch["words"].masked_fill(~mask, 0))
        letters = self.letters(batch["letters"].masked_fill(~mask[..., None], 0))
        x = torch.cat([words, letters], -1)
        lengths = mask.sum(1).clamp(min=1)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=x.size(1))
        emissions = self.emit(outputs).masked_fill(~mask[..., None], 0)
        return self.crf(emissions, batch["tags"].masked_fill(~mask, 0), mask)


model = Tagger()
batch = collate(SENTENCES)
padding = {"words": "mask", "letters": "mask", "tags": "mask"}


def step(batch):
    """Negative log-likelihood per word."""
    return model(batch).sum() / batch["mask"].sum()


def train(steps=3):
    """The usual loop."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        step(collate(SENTENCES)).backward()
        optimizer.step()
