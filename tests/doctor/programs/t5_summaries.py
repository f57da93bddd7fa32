"""T5 from a configuration writes short texts from long ones; both sides are padded, the decoder's by its own mask.

After the summarization example of Hugging Face's transformers.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

PAD, END, FIRST = 0, 1, 2
TEXTS = [
    ("the cat that lives next door sat on our mat again", "cat on mat"),
    ("it rained", "rain"),
    ("prices of bread and milk went up this week", "bread and milk dearer"),
]
WORDS = sorted({word for pair in TEXTS for text in pair for word in text.split()})


def tokenized(text):
    return [FIRST + WORDS.index(word) for word in text.split()] + [END]


def padded(rows, value):
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


def collate(pairs):
    """The encoder's mask comes from the ids, the decoder needs none: its padding comes last and is not learnt."""
    sources = padded([tokenized(source) for source, _ in pairs], PAD)
    labels = padded([tokenized(target) for _, target in pairs], -100)
    return {"input_ids": sources, "attention_mask": (sources != PAD).long(), "labels": labels}


def coverage(cross_attentions, source_mask, target_mask):
    """How unevenly the words of a source are looked at, over real words on both sides.

    Args:
        cross_attentions: one tensor of shape (batch, heads, targets, sources) for each layer.
        source_mask: tensor of shape (batch, sources).
        target_mask: tensor of shape (batch, targets).
    """
    looks = torch.stack(cross_attentions).mean((0, 2))
    looks = looks.masked_fill(~target_mask[..., None], 0).sum(1).masked_fill(~source_mask, 0)
    share = looks / target_mask.sum(1, keepdim=True).clamp(min=1)
    even = 1 / source_mask.sum(1, keepdim=True).clamp(min=1)
    return (share - even).masked_fill(~source_mask, 0).square().sum(1).mean()


class Summarizer(nn.Module):
    """T5, and beside it a guess of the summary's length from the mean state of the encoder."""

    def __init__(self, config):
        super().__init__()
        self.t5 = T5ForConditionalGeneration(config)
        self.length = nn.Sequential(nn.Linear(config.d_model, 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, batch):
        output = self.t5(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            labels=batch["labels"],
            output_attentions=True,
        )
        real = batch["attention_mask"].bool()[..., None]
        hidden = output.encoder_last_hidden_state.masked_fill(~real, 0)
        mean = hidden.sum(1) / real.sum(1).clamp(min=1)
        return output, self.length(mean).squeeze(-1)


config = T5Config(
    vocab_size=FIRST + len(WORDS),
    d_model=8,
    d_kv=4,
    d_ff=16,
    num_layers=2,
    num_heads=2,
    decoder_start_token_id=PAD,
    pad_token_id=PAD,
    eos_token_id=END,
)
config._attn_implementation = "eager"
model = Summarizer(config)
batch = collate(TEXTS)


def step(batch):
    """Words with smoothed labels, the lengths, and the coverage."""
    output, length = model(batch)
    learnt = batch["labels"] != -100
    words = F.cross_entropy(output.logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1)
    lengths = F.smooth_l1_loss(length, learnt.sum(1).float())
    even = coverage(output.cross_attentions, batch["attention_mask"].bool(), learnt)
    return words + 0.1 * lengths + 0.1 * even


def train(steps=3):
    """Adafactor, as T5 was trained."""
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        step(batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def summary(text, longest=4):
    """One word after the other."""
    source, ids = torch.tensor([tokenized(text)]), [PAD]
    while len(ids) < longest and ids[-1] != END:
        logits = model.t5(input_ids=source, decoder_input_ids=torch.tensor([ids])).logits
        ids.append(int(logits[0, -1].argmax()))
    return ids[1:]
