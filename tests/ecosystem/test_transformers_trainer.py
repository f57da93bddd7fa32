"""transformers.Trainer with mg.integrations.TrainerMixin, against one pass over the whole batch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F

import maskgrad as mg
from tests.ecosystem.micro_batches import moved
from tests.ecosystem.rows import one_line

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about itself


class Trainer(mg.integrations.TrainerMixin, transformers.Trainer):
    """As the page says."""


SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 20,
}


def bert(kind: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        **SIZES, num_labels=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return kind(config)


def llama() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, max_position_embeddings=32, pad_token_id=0)
    )


def t5() -> Any:
    torch.manual_seed(0)
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            d_model=8,
            d_kv=4,
            d_ff=8,
            num_layers=1,
            num_heads=2,
            vocab_size=20,
            dropout_rate=0.0,
            decoder_start_token_id=0,
            pad_token_id=0,
        )
    )


class Tagger(nn.Module):
    """A model that knows MaskedTensors, with a table of sparse gradients."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = mg.nn.Embedding(20, 8, sparse=sparse), nn.Linear(8, 4)

    def forward(self, input_ids: Any, labels: Any = None) -> dict[str, Any]:
        logits = self.out(self.table(input_ids))
        return {"loss": F.cross_entropy(logits.movedim(-1, 1), labels), "logits": logits}


def samples(number: int, labels_below: int, seed: int = 0) -> list[dict[str, list[int]]]:
    """Sequences of different lengths with few labels, and none at all in two micro-batches of two."""
    generator = torch.Generator().manual_seed(seed)
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


@contextmanager
def in_order(kind: Any) -> Iterator[Any]:
    """The same Trainer without shuffling, so that another loop can do the same steps."""
    yield type(
        "InOrder",
        (kind,),
        {"_get_train_sampler": lambda self, *_: torch.utils.data.SequentialSampler(self.train_dataset)},
    )


def train(kind: Any, model: Any, data: Any, collate: Any, **changes: Any) -> Any:
    with in_order(kind) as ordered:
        trainer = ordered(
            model=model,
            args=arguments(**changes),
            train_dataset=data,
            eval_dataset=data,
            data_collator=collate,
        )
        trainer.train()
    return trainer


def reference(
    model: Any, data: Any, per_step: int, losses_of: Any, epochs: int = 2, clip: float = 0.5
) -> list[float]:
    """Plain PyTorch: one pass over all samples of a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    means = []
    for _ in range(epochs):
        for start in range(0, len(data), per_step):
            losses = losses_of(model, data[start : start + per_step])
            means.append(losses.mean())
            optimizer.zero_grad()
            means[-1].backward()
            mg.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return [float(mean) for mean in means]


def padded(data: Any) -> tuple[Tensor, Tensor, Tensor]:
    ids, labels = ([torch.tensor(one[name]) for one in data] for name in ("input_ids", "labels"))
    whole = nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return whole, nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100), (whole != 0).long()


def losses_of(model: Any, data: Any) -> Tensor:
    ids, labels, mask = padded(data)
    if isinstance(model, Tagger):
        logits = model.out(F.embedding(ids, model.table.weight))
    elif model.config.is_encoder_decoder:
        logits = model(
            input_ids=ids, attention_mask=mask, decoder_input_ids=model._shift_right(labels)
        ).logits
    else:
        logits = model(input_ids=ids, attention_mask=mask).logits
    if isinstance(model, transformers.LlamaForCausalLM):
        logits, labels = logits[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits[labels != -100], labels[labels != -100], reduction="none")


MODELS = {
    "token classification": lambda: bert(transformers.BertForTokenClassification),
    "masked language model": lambda: bert(transformers.BertForMaskedLM),
    "causal": llama,
    "encoder and decoder": t5,
    "own, dense": lambda: Tagger(sparse=False),
    "own, sparse table": Tagger,
}


def labels_below(name: str) -> int:
    return 4 if "token" in name or "own" in name else 20


@one_line(
    "transformers", "`Trainer`, micro-batches, empty ones", "`class Trainer(mg.integrations.TrainerMixin, …)`"
)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_one_pass_over_its_labels(name: str) -> None:
    data = samples(14, labels_below(name))  # three micro-batches a step, and one that is left
    model, truth = MODELS[name](), MODELS[name]()
    trainer = train(Trainer, model, data, mg.integrations.TokenCollator())
    means = reference(truth, data, 6, losses_of)
    assert moved(model, truth) < 1e-6
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    torch.testing.assert_close(logged, means, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["token classification", "causal", "own, dense"])
def test_eval_loss_is_the_mean_over_all_labels(name: str) -> None:
    data = samples(7, labels_below(name), seed=1)
    model = MODELS[name]()
    trainer = Trainer(
        model=model,
        args=arguments(),
        eval_dataset=data,
        data_collator=mg.integrations.TokenCollator(),
    )
    truth = losses_of(model, data).mean()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(truth), abs=1e-6)
    assert trainer.predict(data, metric_key_prefix="p").metrics["p_loss"] == pytest.approx(
        float(truth), abs=1e-6
    )


def test_the_plain_trainer_is_off() -> None:
    """What the mixin is for; once transformers counts for these models, too, the page has to change."""
    data = samples(12, 4)
    model, truth = MODELS["token classification"](), MODELS["token classification"]()
    collate = transformers.DataCollatorForTokenClassification(_Padder())
    train(transformers.Trainer, model, data, collate, max_grad_norm=0.0, num_train_epochs=1)
    reference(truth, data, 6, losses_of, epochs=1, clip=float("inf"))
    assert not moved(model, truth) < 1e-3


class _Padder:
    padding_side = "right"

    def pad(self, features: Any, return_tensors: Any = None, **_: Any) -> dict[str, Tensor]:
        ids, _, mask = padded([one | {"labels": one.get("labels", one["input_ids"])} for one in features])
        return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("masked", [False, True])
def test_compute_loss_func_gives_a_mean_or_masked_losses(masked: bool) -> None:
    def loss_of(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        assert isinstance(labels, mg.MaskedTensor)
        return F.cross_entropy(outputs.logits.movedim(-1, 1), labels, reduction="none" if masked else "mean")

    data, model, truth = samples(12, 4), *(MODELS["token classification"]() for _ in range(2))

    class WithLoss(Trainer):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options, compute_loss_func=loss_of)

    trainer = train(WithLoss, model, data, mg.integrations.TokenCollator())
    reference(truth, data, 6, losses_of)
    assert moved(model, truth) < 1e-6
    assert trainer.evaluate()["eval_loss"] == pytest.approx(float(losses_of(truth, data).mean()), abs=1e-6)


def test_what_cannot_be_counted_is_refused() -> None:
    remedy = r"override count_labels\(self, inputs\) in your Trainer"
    collate = mg.integrations.TokenCollator()
    answers = [{"input_ids": [1, 2, 3], "start_positions": 1, "end_positions": 2}] * 2
    with pytest.raises(ValueError, match=rf"a batch has start_positions and end_positions.*{remedy}"):
        train(Trainer, bert(transformers.BertForQuestionAnswering), answers, collate)
    pairs = [{"input_ids": [1, 2], "labels": [1, 2], "next_sentence_label": 1}] * 2
    with pytest.raises(ValueError, match=rf"a batch has labels and next_sentence_label.*{remedy}"):
        train(Trainer, bert(transformers.BertForPreTraining), pairs, collate)

    class Net(nn.Module):
        config = transformers.BertConfig(**SIZES)

    trainer = Trainer(model=MODELS["token classification"](), args=arguments(), data_collator=collate)
    trainer.model = Net()
    with pytest.raises(ValueError, match=rf"the model is a Net.*{remedy}"):
        trainer.count_labels({"labels": torch.ones(2)})
    trainer.model = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=rf"labels are a list.*{remedy}"):
        trainer.count_labels({"labels": [1]})
    trainer.args._n_gpu = 2
    with pytest.raises(
        RuntimeError, match=r"one process with 2 GPUs.*torchrun, or set CUDA_VISIBLE_DEVICES=0"
    ):
        trainer.get_batch_samples(iter([]), 1, "cpu")


def test_labels_on_several_ranks_are_refused() -> None:
    trainer = Trainer(model=MODELS["token classification"](), args=arguments())
    trainer.get_tp_size = lambda: 2
    with pytest.raises(
        RuntimeError, match=r"\(tp parallelism\).*use your own loop with mg\.GradientAccumulator"
    ):
        trainer.get_batch_samples(iter([]), 1, "cpu")


def test_as_many_losses_as_labels_are_asked_for() -> None:
    class Shorter(Tagger):
        def forward(self, input_ids: Any, labels: Any = None) -> dict[str, Any]:
            losses = F.cross_entropy(self.out(self.table(input_ids)).movedim(-1, 1), labels, reduction="none")
            return {"loss": losses[:, 1:], "logits": losses}

    with pytest.raises(
        ValueError, match=r"losses and \d+ labels.*override count_labels\(self, inputs\) so that both"
    ):
        train(Trainer, Shorter(), samples(6, 4), mg.integrations.TokenCollator())


def test_masked_numbers_need_a_loss_that_knows_them() -> None:
    model = bert(transformers.BertForSequenceClassification)
    trainer = Trainer(model=model, args=arguments())
    with pytest.raises(ValueError, match=r"'labels' are masked floats.*compute_loss_func"):
        trainer._prepare_inputs({"labels": mg.masked(torch.ones(2))})
