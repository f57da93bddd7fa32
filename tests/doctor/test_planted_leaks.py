"""A leak planted in a model of Hugging Face, or in what a user writes around it, is found at its line.

Ten architectures from configurations of a few thousand parameters; each is asked with the leaks and without them.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
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
    "OPT": SMALL | POSITIONS | {"ffn_dim": 8, "word_embed_proj_dim": 8},
}


def hidden_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state


LEAKS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda hidden: hidden.mean(1),
    "strongest": lambda hidden: hidden.max(1).values,
    "last": lambda hidden: hidden[:, -1],
    "spread": lambda hidden: hidden.std(1),
    "weighed": lambda hidden: (hidden.sum(-1, keepdim=True).softmax(1) * hidden).sum(1),
}


def centred(module: nn.Module, args: object, hidden: Tensor) -> Tensor:
    """Between the embeddings and the first layer: each token is told what the mean of its text is."""
    return hidden - 0.5 * hidden.mean(1, keepdim=True)


def model_of(name: str) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(**CONFIGS[name])
    return getattr(transformers, f"{name}Model")(config).eval()


@pytest.mark.corpus
@pytest.mark.parametrize("name", CONFIGS)
def test_leaks_around_and_inside_a_model_are_found_at_their_lines_and_nothing_without_them(name: str) -> None:
    model, pooled = model_of(name), None

    def step(batch: dict[str, Tensor]) -> Tensor:
        hidden = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
        if pooled:
            return F.cross_entropy(HEAD(LEAKS[pooled](hidden)), batch["label"])
        real = batch["attention_mask"].bool()[..., None]
        mean = hidden.masked_fill(~real, 0).sum(1) / real.sum(1).clamp(min=1)
        return F.cross_entropy(HEAD(mean), batch["label"])

    def found() -> list[tuple[str, str]]:
        report = doctor.examine(step, BATCH, quick=True)
        return [(finding.kind, finding.code) for finding in report.findings]

    assert found() == []
    pooled = list(LEAKS)[list(CONFIGS).index(name) % len(LEAKS)]
    ((kind, code),) = found()
    assert (kind, code.split('"')[1]) == ("padding-leak", pooled)
    pooled = None
    model.get_input_embeddings().register_forward_hook(centred)
    assert found() == [("padding-leak", "return hidden - 0.5 * hidden.mean(1, keepdim=True)")]


def test_the_line_of_an_installed_package_is_named_beside_that_of_the_program() -> None:
    model = model_of("Bert")
    report = doctor.examine(lambda b: model(b["input_ids"]).last_hidden_state[:, 0].square().sum(), BATCH)
    finding = report.findings[0]
    assert (finding.file, "transformers" in Path(finding.package_file).parts) == (__file__, True)
    assert linecache.getline(finding.package_file, finding.package_line).strip() in str(finding)


def test_there_are_ten_architectures() -> None:
    assert len({model_of(name).config.model_type for name in CONFIGS}) == 10
