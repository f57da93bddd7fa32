"""A leak planted in a model of Hugging Face, or in what a user writes around it, is found at its line.

Ten architectures from configurations of a few thousand parameters; each is asked with the leaks and without them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskgrad import doctor

transformers = pytest.importorskip("transformers", reason="the models are those of transformers")

IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 1, 1], [11, 2, 1, 1, 1]])
MASK = (IDS != 1).long()
LABELS = torch.tensor([0, 2, 1])
BATCH = {"input_ids": IDS, "attention_mask": MASK, "label": LABELS}
HEAD = nn.Linear(8, 3)

SMALL = {
    "vocab_size": 12,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}
POSITIONS = {"max_position_embeddings": 16, "pad_token_id": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    "Bert": SMALL | POSITIONS,
    "Roberta": SMALL | POSITIONS,
    "Electra": SMALL | POSITIONS | {"embedding_size": 8},
    "Albert": SMALL | POSITIONS | {"embedding_size": 8},
    "DistilBert": {"vocab_size": 12, "dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8} | POSITIONS,
    "GPT2": {"vocab_size": 12, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16},
    "Llama": SMALL | POSITIONS | {"num_key_value_heads": 2},
    "MPNet": SMALL | POSITIONS,
    "GPTNeoX": SMALL | {"max_position_embeddings": 16},
    "OPT": {
        "vocab_size": 12,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "ffn_dim": 8,
        "word_embed_proj_dim": 8,
    }
    | POSITIONS,
}


def hidden_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state


def mean(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    hidden = hidden_of(model, batch)
    pooled = hidden.mean(1)  # leak
    return F.cross_entropy(HEAD(pooled), batch["label"])


def strongest(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    hidden = hidden_of(model, batch)
    pooled = hidden.max(1).values  # leak
    return F.cross_entropy(HEAD(pooled), batch["label"])


def last(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    hidden = hidden_of(model, batch)
    pooled = hidden[:, -1]  # leak
    return F.cross_entropy(HEAD(pooled), batch["label"])


def spread(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    hidden = hidden_of(model, batch)
    pooled = hidden.std(1)  # leak
    return F.cross_entropy(HEAD(pooled), batch["label"])


def weighed(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    hidden = hidden_of(model, batch)
    weights = hidden.sum(-1, keepdim=True).softmax(1)  # leak
    return F.cross_entropy(HEAD((weights * hidden).sum(1)), batch["label"])


def right(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    hidden = hidden_of(model, batch)
    real = batch["attention_mask"].bool()[..., None]
    pooled = hidden.masked_fill(~real, 0).sum(1) / real.sum(1).clamp(min=1)
    return F.cross_entropy(HEAD(pooled), batch["label"])


LEAKS = (mean, strongest, last, spread, weighed)


def centred(module: nn.Module, args: object, hidden: Tensor) -> Tensor:
    """Between the embeddings and the first layer: each token is told what the mean of its text is."""
    return hidden - 0.5 * hidden.mean(1, keepdim=True)  # leak


def model_of(name: str) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(**CONFIGS[name])
    return getattr(transformers, f"{name}Model")(config).eval()


def examined(name: str, program: Callable[..., Tensor], *, inside: bool = False) -> doctor.Report:
    model = model_of(name)
    if inside:
        model.get_input_embeddings().register_forward_hook(centred)
    return doctor.examine(lambda batch: program(model, batch), BATCH, quick=True)


def marked_line(program: Callable[..., Tensor]) -> int:
    lines, first = inspect.getsourcelines(program)
    return first + next(number for number, line in enumerate(lines) if "# leak" in line)


@pytest.mark.corpus
@pytest.mark.parametrize("name", CONFIGS)
def test_a_planted_leak_is_found_at_its_line(name: str) -> None:
    leak = LEAKS[list(CONFIGS).index(name) % len(LEAKS)]
    found = examined(name, leak).findings
    assert [(finding.kind, finding.file, finding.line) for finding in found] == [
        ("padding-leak", __file__, marked_line(leak))
    ]


@pytest.mark.corpus
@pytest.mark.parametrize("name", CONFIGS)
def test_a_leak_inside_the_model_is_found_at_its_line(name: str) -> None:
    found = examined(name, right, inside=True).findings
    assert [(finding.kind, finding.file, finding.line) for finding in found] == [
        ("padding-leak", __file__, marked_line(centred))
    ]


def test_there_are_ten_architectures() -> None:
    assert len({model_of(name).config.model_type for name in CONFIGS}) == 10


@pytest.mark.corpus
@pytest.mark.parametrize("name", CONFIGS)
def test_nothing_is_found_without_it(name: str) -> None:
    assert examined(name, right).findings == []
