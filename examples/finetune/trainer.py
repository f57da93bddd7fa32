"""The Trainer of Hugging Face, as it is and with the mixin: the same model, words and micro-batches."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import Tensor

import maskgrad as mg
from maskgrad.optional_packages import require

from .loop import MicroBatches, collate
from .model import StressReader

__all__ = ["trained"]


def trained(model: StressReader, steps: list[MicroBatches], learning_rate: float, *, exact: bool) -> Tensor:
    """Train ``model`` with SGD, one step for each list of micro-batches; its parameters in a row.

    Args:
        model: returns unreduced losses for the mixin, and their mean for the Trainer alone.
        steps: micro-batches of equal size, of which there are equally many in each step.
        learning_rate: constant.
        exact: with the mixin.
    """
    transformers = require("transformers", "the fine-tuning example", "ecosystem")
    mg.integrations.install("transformers")

    class InOrder(transformers.Trainer):  # type: ignore[misc,name-defined]
        """The order of the words decides what is in a micro-batch: keep it."""

        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset if dataset is None else dataset)

    class Exact(mg.integrations.TrainerMixin, InOrder):
        """One line: the gradient of a step is the mean over all of its labels."""

    words = [sample for micro_batches in steps for samples in micro_batches for sample in samples]
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, per_device_train_batch_size=len(steps[0][0]), gradient_accumulation_steps=len(steps[0]),
            num_train_epochs=1, max_grad_norm=0.0, use_cpu=True, remove_unused_columns=False, report_to=[],
            logging_strategy="no", save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = (Exact if exact else InOrder)(
            model, arguments, collate, words,
            optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
        )  # fmt: skip
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    return torch.cat([p.detach().flatten() for p in model.parameters()])
