"""Names are classified by the language they come from: a recurrent network over letters, batches of unequal names.

After PyTorch's tutorial "NLP from scratch: classifying names with a character-level RNN", with batches.
"""

import string

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

LETTERS = string.ascii_lowercase + " '-"
PAD = len(LETTERS)
NAMES = {
    "Czech": ["novak", "svoboda", "dvorak", "cerny"],
    "Dutch": ["de vries", "van dijk", "bakker", "smit"],
    "Greek": ["papadopoulos", "nikolaou", "dimas"],
    "Irish": ["o'brien", "murphy", "kelly", "o'neill"],
}
LANGUAGES = sorted(NAMES)


def encoded(name):
    """Letters as numbers; what is no letter of ours is left out."""
    return torch.tensor([LETTERS.index(letter) for letter in name.lower() if letter in LETTERS])


class NamesDataset(torch.utils.data.Dataset):
    """Pairs of a name and the number of its language."""

    def __init__(self, names):
        self.samples = [
            (encoded(name), LANGUAGES.index(language)) for language in names for name in names[language]
        ]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def collate(samples):
    """Names of unequal length, padded to the longest; the number of letters goes along."""
    names, languages = zip(*samples, strict=True)
    return {
        "letters": pad_sequence(names, batch_first=True, padding_value=PAD),
        "lengths": torch.tensor([len(name) for name in names]),
        "language": torch.tensor(languages),
    }


class CharRNN(nn.Module):
    """Letters, a recurrent network in both directions, the mean over the letters, a language."""

    def __init__(self, width, languages):
        super().__init__()
        self.letters = nn.Embedding(PAD + 1, width, padding_idx=PAD)
        self.forwards = nn.GRU(width, width, batch_first=True)
        self.backwards = nn.GRU(width, width, batch_first=True)
        self.to_language = nn.Sequential(
            nn.LayerNorm(4 * width), nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, languages)
        )

    def states(self, letters, lengths):
        """The last states of both directions: the packed batch, and each name turned round within its length."""
        packed = pack_padded_sequence(self.letters(letters), lengths, batch_first=True, enforce_sorted=False)
        _, there = self.forwards(packed)
        time = torch.arange(letters.size(1), device=letters.device)
        within = (lengths[:, None] - 1 - time).clamp(min=0)
        turned = self.letters(letters.gather(1, within))
        packed = pack_padded_sequence(turned, lengths, batch_first=True, enforce_sorted=False)
        _, back = self.backwards(packed)
        return torch.cat([there[0], back[0]], -1)

    def bag(self, letters, lengths):
        """The mean and the maximum of the letters' vectors."""
        real = (torch.arange(letters.size(1), device=letters.device) < lengths[:, None])[..., None]
        vectors = self.letters(letters)
        mean = vectors.masked_fill(~real, 0).sum(1) / lengths[:, None]
        most = vectors.masked_fill(~real, torch.finfo(vectors.dtype).min).amax(1)
        return torch.cat([mean, most], -1)

    def forward(self, letters, lengths):
        lengths = lengths.clamp(min=1)
        features = torch.cat([self.states(letters, lengths), self.bag(letters, lengths)], -1)
        return self.to_language(features)


dataset = NamesDataset(NAMES)
model = CharRNN(8, len(LANGUAGES))
batch = collate([dataset[index] for index in (0, 4, 8, 11, 5)])
padding = {"letters": batch["letters"] != PAD}


def step(batch):
    """The loss of one batch."""
    logits = model(batch["letters"], batch["lengths"])
    return F.cross_entropy(logits, batch["language"], label_smoothing=0.05)


def train(epochs=2):
    """The usual loop."""
    loader = torch.utils.data.DataLoader(dataset, batch_size=5, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    history = []
    for _ in range(epochs):
        for each in loader:
            optimizer.zero_grad()
            loss = step(each)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            history.append(loss.item())
    return history
