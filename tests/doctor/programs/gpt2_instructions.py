"""GPT-2 from a configuration is tuned on instructions: only the answers are learnt, batches are padded on the right.

After the supervised fine-tuning examples of Hugging Face's transformers and TRL.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

PAD, USER, ASSISTANT, END, FIRST = 0, 1, 2, 3, 4
DIALOGUES = [
    ("say hello", "hello"),
    ("count to three please", "one two three"),
    ("what is two and two", "four"),
    ("sing", "la la la la la"),
]
WORDS = sorted({word for turn in DIALOGUES for text in turn for word in text.split()})


def tokenized(text):
    return [FIRST + WORDS.index(word) for word in text.split()]


def encoded(question, answer):
    """Ids of a dialogue, and whether each is to be learnt: the answer and its end are."""
    prompt, reply = [USER, *tokenized(question), ASSISTANT], [*tokenized(answer), END]
    return prompt + reply, [False] * len(prompt) + [True] * len(reply)


def collate(dialogues):
    """Labels are the ids themselves, -100 where nothing is to be learnt; the model shifts them."""
    rows = [encoded(*dialogue) for dialogue in dialogues]
    longest = max(len(ids) for ids, _ in rows)
    batch = {
        "input_ids": torch.full((len(rows), longest), PAD),
        "attention_mask": torch.zeros(len(rows), longest, dtype=torch.long),
        "labels": torch.full((len(rows), longest), -100),
    }
    for i, (ids, learnt) in enumerate(rows):
        n, row = len(ids), torch.tensor(ids)
        batch["input_ids"][i, :n] = row
        batch["attention_mask"][i, :n] = 1
        batch["labels"][i, :n] = row.masked_fill(~torch.tensor(learnt), -100)
    return batch


class LowRank(nn.Module):
    """A frozen layer and what is learnt beside it, a product of two thin matrices."""

    def __init__(self, layer, rank=2):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        inside, outside = layer.weight.shape
        self.down = nn.Parameter(torch.randn(inside, rank) / inside**0.5)
        self.up = nn.Parameter(0.1 * torch.randn(rank, outside))

    def forward(self, x):
        return self.layer(x) + x @ self.down @ self.up


def adapted(model):
    """Low-rank adapters in each attention, the rest frozen except for the norms."""
    model.requires_grad_(False)
    for block in model.transformer.h:
        block.attn.c_attn = LowRank(block.attn.c_attn)
        block.ln_1.requires_grad_(True)
        block.ln_2.requires_grad_(True)
    model.transformer.ln_f.requires_grad_(True)
    return model


config = GPT2Config(
    vocab_size=FIRST + len(WORDS),
    n_embd=8,
    n_layer=2,
    n_head=2,
    n_positions=32,
    bos_token_id=USER,
    eos_token_id=END,
    pad_token_id=PAD,
)
model = adapted(GPT2LMHeadModel(config))
batch = collate(DIALOGUES)


def step(batch):
    """The model's own loss, and how far it has gone from where it started, on answers alone."""
    output = model(**batch)
    logp = output.logits[:, :-1].log_softmax(-1)
    learnt = batch["labels"][:, 1:] != -100
    with torch.no_grad():
        uniform = torch.full_like(logp, -torch.tensor(float(logp.size(-1))).log())
    away = F.kl_div(logp, uniform, reduction="none", log_target=True).sum(-1)
    return output.loss + 0.01 * away.masked_fill(~learnt, 0).sum() / learnt.sum()


def train(steps=2, parts=2):
    """Micro-batches of unequal numbers of answers, one denominator."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        micro = [collate(DIALOGUES[i::parts]) for i in range(parts)]
        answers = sum((each["labels"][:, 1:] != -100).sum() for each in micro)
        for each in micro:
            model(**each, num_items_in_batch=answers).loss.backward()
        optimizer.step()
