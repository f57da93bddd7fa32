"""Translation of numbers into words, with an attending decoder, batches of unequal sentences on both sides.

After PyTorch's tutorial "NLP from scratch: translation with a sequence to sequence network and attention".
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

PAD, START, END = 0, 1, 2
SPECIAL = ["<pad>", "<start>", "<end>"]
PAIRS = [
    ("2 1", "twenty one"),
    ("4", "four"),
    ("1 0 0", "one hundred"),
    ("3 0 5", "three hundred and five"),
    ("7 0", "seventy"),
]


class Vocabulary:
    """Words and their numbers."""

    def __init__(self, sentences):
        words = sorted({word for sentence in sentences for word in sentence.split()})
        self.words = SPECIAL + words
        self.number = {word: number for number, word in enumerate(self.words)}

    def __len__(self):
        return len(self.words)

    def encode(self, sentence):
        return [self.number[word] for word in sentence.split()] + [END]


source_words = Vocabulary([source for source, _ in PAIRS])
target_words = Vocabulary([target for _, target in PAIRS])


def collate(pairs):
    """Both sides padded; the target once as input of the decoder and once as what it has to say."""
    sources = [torch.tensor(source_words.encode(source)) for source, _ in pairs]
    targets = [torch.tensor(target_words.encode(target)) for _, target in pairs]
    shifted = [torch.cat([torch.tensor([START]), target[:-1]]) for target in targets]
    return {
        "source": pad_sequence(sources, batch_first=True, padding_value=PAD),
        "source_lengths": torch.tensor([len(source) for source in sources]),
        "decoder_input": pad_sequence(shifted, batch_first=True, padding_value=PAD),
        "labels": pad_sequence(targets, batch_first=True, padding_value=-100),
    }


class Encoder(nn.Module):
    """A GRU in both directions over a packed batch."""

    def __init__(self, words, width):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=PAD)
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * width, width)

    def forward(self, source, lengths):
        packed = pack_padded_sequence(self.embed(source), lengths, batch_first=True, enforce_sorted=False)
        outputs, state = self.rnn(packed)
        outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=source.size(1))
        return self.bridge(outputs), self.bridge(torch.cat([state[0], state[1]], -1)).tanh()


class Attention(nn.Module):
    """Additive attention; positions that are padding have no weight."""

    def __init__(self, width):
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.score = nn.Linear(width, 1)

    def forward(self, query, keys, real):
        scores = self.score((self.query(query)[:, None] + self.key(keys)).tanh()).squeeze(-1)
        weights = scores.masked_fill(~real, torch.finfo(scores.dtype).min).softmax(-1)
        return (weights[..., None] * keys.masked_fill(~real[..., None], 0)).sum(1)


class Decoder(nn.Module):
    """One word after the other, each with a look at the source."""

    def __init__(self, words, width):
        super().__init__()
        self.embed = nn.Embedding(words, width, padding_idx=PAD)
        self.attention = Attention(width)
        self.cell = nn.GRUCell(2 * width, width)
        self.out = nn.Linear(2 * width, words)

    def forward(self, inputs, keys, state, real):
        logits = []
        for word in self.embed(inputs).unbind(1):
            context = self.attention(state, keys, real)
            state = self.cell(torch.cat([word, context], -1), state)
            logits.append(self.out(torch.cat([state, context], -1)))
        return torch.stack(logits, 1)


model = nn.ModuleDict({"encoder": Encoder(len(source_words), 8), "decoder": Decoder(len(target_words), 8)})
batch = collate(PAIRS[:4])
real_source = torch.arange(batch["source"].size(1)) < batch["source_lengths"][:, None]
padding = {
    "source": real_source,
    "decoder_input": batch["decoder_input"] != PAD,
    "labels": batch["labels"] != -100,
}


def step(batch):
    """Teacher forcing: the mean over the words of all targets."""
    lengths = batch["source_lengths"].clamp(min=1)
    keys, state = model["encoder"](batch["source"], lengths)
    real = torch.arange(batch["source"].size(1)) < lengths[:, None]
    logits = model["decoder"](batch["decoder_input"], keys, state, real)
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


def train(steps=3):
    """The usual loop."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        step(collate(PAIRS)).backward()
        optimizer.step()
