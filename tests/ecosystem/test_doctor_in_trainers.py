"""Trainers inside the doctor's block: a planted leak is named with its line, a right model passes."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

import maskgrad as mg

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
LENGTHS = (2, 5, 4, 6, 3, 6, 1, 2)
LEAK = next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# leak"))


class Pooled(nn.Module):
    """A tiny Bert and the mean of its last layer: of what is real, or of all."""

    def __init__(self, leaks: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = transformers.BertConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            vocab_size=20,
            max_position_embeddings=8,
        )
        self.bert = transformers.BertModel(config, add_pooling_layer=False)
        self.out, self.leaks = nn.Linear(8, 2), leaks

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        if self.leaks:
            pooled = hidden.mean(1)  # leak
        else:
            kept = attention_mask[..., None]
            pooled = (hidden * kept).sum(1) / kept.sum(1)
        return {"loss": F.cross_entropy(self.out(pooled), labels)}


def samples() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    found = []
    for place, length in enumerate(LENGTHS):
        real = torch.arange(6) < length
        ids = torch.randint(1, 20, (6,), generator=generator) * real
        found.append({"input_ids": ids, "attention_mask": real.long(), "labels": place % 2})
    return found


def by_hugging_face(model: Pooled) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = transformers.Trainer(
            model,
            transformers.TrainingArguments(
                folder,
                per_device_train_batch_size=2,
                num_train_epochs=1,
                logging_steps=1,
                report_to=[],
                save_strategy="no",
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=samples(),
        )
        trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


class Module(lightning.LightningModule):
    def __init__(self, model: Pooled) -> None:
        super().__init__()
        self.model, self.losses = model, list[float]()

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = self.model(**batch)["loss"]
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def by_lightning(model: Pooled) -> list[float]:
    module = Module(model)
    torch.manual_seed(1)
    lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(module, torch.utils.data.DataLoader(samples(), batch_size=2))
    return module.losses


TRAINERS = [pytest.param(by_hugging_face, id="transformers"), pytest.param(by_lightning, id="lightning")]


@pytest.mark.parametrize("fit", TRAINERS)
def test_a_leak_is_named_with_its_line(fit: Any) -> None:
    with mg.doctor.watch() as watched:
        losses = fit(Pooled(leaks=True))
    (finding,) = watched.report.findings
    assert (finding.file, finding.line) == (__file__, LEAK)
    assert "pooled = hidden.mean(1)" in str(watched.report)
    # dropout and all: the training is the one it would have been
    assert losses == fit(Pooled(leaks=True))
    assert len(losses) == 4
