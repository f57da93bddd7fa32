"""Collators of transformers read lists of numbers: given MaskedTensors they refuse, and name ours."""

from __future__ import annotations

import pytest
import tokenizers
import torch
import transformers

import maskgrad as mg
from tests.ecosystem.rows import refused

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about itself


@refused(
    "transformers",
    "its collators",
    "`mg.integrations.TokenCollator()`, or a function that calls `torch.stack`",
)
def test_collators_refuse() -> None:
    x = mg.masked(torch.tensor([1, 2, 1]), torch.tensor([True, True, False]))
    vocabulary = tokenizers.models.WordLevel({"[PAD]": 0, "a": 1, "[UNK]": 2, "[MASK]": 3}, unk_token="[UNK]")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(vocabulary), pad_token="[PAD]", mask_token="[MASK]"
    )
    whole = [{"input_ids": x, "labels": x}, {"input_ids": x, "labels": x}]
    for collator in (
        transformers.default_data_collator,
        transformers.DefaultDataCollator(),
        transformers.DataCollatorWithPadding(tokenizer),
        transformers.DataCollatorForTokenClassification(tokenizer),
        transformers.DataCollatorForSeq2Seq(tokenizer),
        transformers.DataCollatorForLanguageModeling(tokenizer),
        transformers.DataCollatorWithFlattening(),
    ):
        with pytest.raises(mg.UnsupportedOperationError, match=r"mg\.integrations\.TokenCollator\(\)"):
            collator([dict(sample) for sample in whole])
    labels = [
        {"input_ids": [1, 2, 1], "labels": x} for _ in range(2)
    ]  # which it takes out before padding the others
    with pytest.raises(TypeError, match=r"torch\.stack\(samples\).*mg\.integrations\.TokenCollator"):
        transformers.DataCollatorForTokenClassification(tokenizer)(labels)
    assert torch.stack([sample["input_ids"] for sample in whole]).tolist() == [[1, 2, None]] * 2
