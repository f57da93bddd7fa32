"""Hugging Face's Trainer: micro-batches of four sequences, eight of them a step, one denominator."""

import tempfile

import torch
import transformers

import maskgrad as mg

mg.integrations.install()

torch.manual_seed(0)
tokens = torch.randint(1, 50, (64, 12))
lengths = torch.randint(1, 13, (64, 1))
labels = torch.where(torch.arange(12) < lengths, tokens % 7, -100)  # -100: nothing to learn there
data = [
    {"input_ids": x[:n].tolist(), "labels": y[:n].tolist()}
    for x, y, n in zip(tokens, labels, lengths.flatten().tolist(), strict=True)
]


class Trainer(mg.integrations.TrainerMixin, transformers.Trainer):
    """The mixin comes first."""


config = transformers.BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    num_labels=7,
)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=transformers.BertForTokenClassification(config),
        args=transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=8,
            learning_rate=0.02,
            max_grad_norm=1.0,
            num_train_epochs=20,
            save_strategy="no",
            report_to=[],
        ),
        train_dataset=data,
        eval_dataset=data,
        data_collator=mg.integrations.TokenCollator(),  # padding under a mask; the model gets it as it wants it
    )
    trainer.train()
    found = trainer.evaluate()
assert found["eval_loss"] < 0.5  # over all labels
