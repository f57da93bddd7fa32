"""transformers.Trainer with mg.integrations.TrainerMixin, against one pass over the whole batch."""

from __future__ import annotations

import inspect
import tempfile
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

import maskgrad as mg
from tests.ecosystem.micro_batches import Tagger, moved

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about itself


class Trainer(mg.integrations.TrainerMixin, transformers.Trainer):
    """As the page says."""


#: The same in the words of each architecture.
SIZES: dict[str, Any] = {
    **dict.fromkeys(["hidden_size", "intermediate_size", "d_model", "d_ff"], 8),
    **dict.fromkeys(["num_hidden_layers", "num_layers"], 1),
    **dict.fromkeys(["num_attention_heads", "num_heads"], 2),
    **dict.fromkeys(["hidden_dropout_prob", "attention_probs_dropout_prob", "dropout_rate"], 0.0),
    "d_kv": 4,
    "vocab_size": 20,
    "num_labels": 4,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}


def tiny(kind: Any) -> Any:
    torch.manual_seed(0)
    return kind(kind.config_class(**SIZES))


MODELS = {
    "token classification": lambda: tiny(transformers.BertForTokenClassification),
    "masked language model": lambda: tiny(transformers.BertForMaskedLM),
    "causal": lambda: tiny(transformers.LlamaForCausalLM),
    "encoder and decoder": lambda: tiny(transformers.T5ForConditionalGeneration),
}


def samples(number: int, labels_below: int = 4) -> list[dict[str, list[int]]]:
    """Sequences of different lengths with few labels, and none at all in two micro-batches of two."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for place in range(number):
        length = int(torch.randint(2, 8, (), generator=generator))
        ids = torch.randint(1, 20, (length,), generator=generator)
        labels = torch.randint(0, labels_below, (length,), generator=generator)
        known = torch.rand(length, generator=generator) < (0.1 if place % 3 else 0.9)
        if place // 2 in (1, 4):
            known[:] = False
        found.append({"input_ids": ids.tolist(), "labels": torch.where(known, labels, -100).tolist()})
    return found


def arguments(**changes: Any) -> transformers.TrainingArguments:
    options: dict[str, Any] = {
        "output_dir": tempfile.gettempdir(),
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 3,
        "num_train_epochs": 2,
        "max_grad_norm": 0.5,
        "remove_unused_columns": False,
        "logging_steps": 1,
        "per_device_eval_batch_size": 2,
    }
    return transformers.TrainingArguments(**options | changes)


def train(kind: Any, model: Any, data: Any, collate: Any, **changes: Any) -> Any:
    """Train without shuffling, so that another loop can do the same steps."""

    class InOrder(kind):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    trainer = InOrder(
        model=model, args=arguments(**changes), train_dataset=data, eval_dataset=data, data_collator=collate
    )
    trainer.train()
    return trainer


def reference(model: Any, data: Any, per_step: int = 6) -> list[float]:
    """Two epochs in plain PyTorch: one pass over all samples of a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    means = []
    for start in [*range(0, len(data), per_step)] * 2:
        means.append(losses_of(model, data[start : start + per_step]).mean())
        optimizer.zero_grad()
        means[-1].backward()
        mg.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    return [float(mean) for mean in means]


def losses_of(model: Any, data: Any) -> Tensor:
    pad = nn.utils.rnn.pad_sequence
    ids = pad([torch.tensor(one["input_ids"]) for one in data], batch_first=True)
    labels = pad([torch.tensor(one["labels"]) for one in data], batch_first=True, padding_value=-100)
    mask = (ids != 0).long()
    if model.config.is_encoder_decoder:
        logits = model(
            input_ids=ids, attention_mask=mask, decoder_input_ids=model._shift_right(labels)
        ).logits
    else:
        logits = model(input_ids=ids, attention_mask=mask).logits
    if isinstance(model, transformers.LlamaForCausalLM):
        logits, labels = logits[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits[labels != -100], labels[labels != -100], reduction="none")


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_one_pass_over_its_labels_and_so_is_an_evaluation(name: str) -> None:
    """Three micro-batches a step, and one that is left."""
    data = samples(14, 4 if name == "token classification" else 20)
    model, truth = MODELS[name](), MODELS[name]()
    trainer = train(Trainer, model, data, mg.integrations.TokenCollator())
    means = reference(truth, data)
    assert moved(model, truth) < 1e-6
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    torch.testing.assert_close(logged, means, atol=1e-4, rtol=1e-4)
    mean = pytest.approx(float(losses_of(truth.eval(), data).mean()), abs=1e-6)
    assert trainer.evaluate()["eval_loss"] == mean
    assert trainer.predict(data, metric_key_prefix="p").metrics["p_loss"] == mean


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_compute_loss_func_gives_a_mean_or_masked_losses(reduction: str) -> None:
    def loss_of(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        assert isinstance(labels, mg.MaskedTensor)
        return F.cross_entropy(outputs.logits.movedim(-1, 1), labels, reduction=reduction)

    class WithLoss(Trainer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options, compute_loss_func=loss_of)

    data, model, truth = samples(12), *(MODELS["token classification"]() for _ in range(2))
    trainer = train(WithLoss, model, data, mg.integrations.TokenCollator())
    reference(truth, data)
    assert moved(model, truth) < 1e-6
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(losses_of(truth, data).mean()), abs=1e-6)


class Shorter(Tagger):
    """Fewer losses than labels."""

    def forward(self, input_ids: Any, labels: Any = None) -> dict[str, Any]:
        losses = F.cross_entropy(super().forward(input_ids).movedim(-1, 1), labels, reduction="none")
        return {"loss": losses[:, 1:], "logits": losses}


REMEDY = r".*override count_labels\(self, inputs\)"


@pytest.mark.parametrize(
    ("make", "data", "words"),
    [
        (
            lambda: tiny(transformers.BertForQuestionAnswering),
            [{"input_ids": [1, 2, 3], "start_positions": 1, "end_positions": 2}] * 2,
            f"a batch has start_positions and end_positions{REMEDY}",
        ),
        (
            lambda: tiny(transformers.BertForPreTraining),
            [{"input_ids": [1, 2], "labels": [1, 2], "next_sentence_label": 1}] * 2,
            f"a batch has labels and next_sentence_label{REMEDY}",
        ),
        (Shorter, samples(6), rf"losses and \d+ labels{REMEDY} so that both"),
    ],
)
def test_labels_that_cannot_be_counted_are_refused(make: Any, data: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        train(Trainer, make(), data, mg.integrations.TokenCollator())


def test_what_a_trainer_cannot_know_is_refused() -> None:
    class Net(nn.Module):
        config = transformers.BertConfig()

    trainer = Trainer(model=tiny(transformers.BertForSequenceClassification), args=arguments())
    with pytest.raises(ValueError, match=r"'labels' are masked floats.*compute_loss_func"):
        trainer._prepare_inputs({"labels": mg.masked(torch.ones(2))})
    for model, labels, words in [
        (Net(), torch.ones(2), "the model is a Net"),
        (nn.Linear(1, 1), [1], "labels are a list"),
    ]:
        trainer.model = model
        with pytest.raises(ValueError, match=words + REMEDY):
            trainer.count_labels({"labels": labels})
    trainer.args._n_gpu = 2
    with pytest.raises(
        RuntimeError, match=r"one process with 2 GPUs.*torchrun, or set CUDA_VISIBLE_DEVICES=0"
    ):
        trainer.get_batch_samples(iter([]), 1, "cpu")
    trainer.args._n_gpu, trainer.get_tp_size = 1, lambda: 2
    with pytest.raises(RuntimeError, match=r"\(tp parallelism\).*your own loop with mg\.GradientAccumulator"):
        trainer.get_batch_samples(iter([]), 1, "cpu")


class Pooled(nn.Module):
    """A tiny Bert and the mean of its last layer, of padding, too."""

    def __init__(self) -> None:
        super().__init__()
        self.bert, self.out = tiny(transformers.BertModel), nn.Linear(8, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        pooled = hidden.mean(1)  # leak
        return {"loss": F.cross_entropy(self.out(pooled), labels)}


def test_a_leak_of_a_model_in_a_trainer_is_named_with_its_line() -> None:
    real = torch.arange(6) < torch.tensor([2, 5, 4, 6, 3, 6, 1, 2])[:, None]
    ids = torch.randint(1, 20, (8, 6)) * real
    data = [{"input_ids": x, "attention_mask": m.long(), "labels": 1} for x, m in zip(ids, real, strict=True)]
    with mg.doctor.watch() as watched:
        train(transformers.Trainer, Pooled(), data, None, gradient_accumulation_steps=1)
    (finding,) = watched.report.findings
    leak = next(n for n, line in enumerate(inspect.getsource(Pooled).splitlines()) if line.endswith("# leak"))
    assert (finding.file, finding.line) == (__file__, inspect.getsourcelines(Pooled)[1] + leak)
