"""Collators of transformers read lists of numbers: given MaskedTensors they refuse, and name ours."""

from __future__ import annotations

import pytest
import tokenizers
import torch
import transformers

import maskgrad as mg
from tests.ecosystem.truth import assert_refused

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about itself


def test_collators_refuse() -> None:
    x = mg.masked(torch.tensor([1, 2, 1]), torch.tensor([True, True, False]))
    vocabulary = tokenizers.models.WordLevel({"[PAD]": 0, "a": 1, "[UNK]": 2, "[MASK]": 3}, unk_token="[UNK]")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(vocabulary), pad_token="[PAD]", mask_token="[MASK]"
    )
    sample = {"input_ids": x, "labels": x}
    labels = {"input_ids": [1, 2, 1], "labels": x}  # which it takes out before padding the others
    for collator in (
        transformers.default_data_collator,
        transformers.DefaultDataCollator(),
        transformers.DataCollatorWithPadding(tokenizer),
        transformers.DataCollatorForTokenClassification(tokenizer),
        transformers.DataCollatorForSeq2Seq(tokenizer),
        transformers.DataCollatorForLanguageModeling(tokenizer),
        transformers.DataCollatorWithFlattening(),
    ):
        assert_refused(
            r"mg\.integrations\.TokenCollator", lambda call=collator: call([dict(sample) for _ in "12"])
        )
    collator = transformers.DataCollatorForTokenClassification(tokenizer)
    words = r"torch\.stack\(samples\).*mg\.integrations\.TokenCollator"
    assert_refused(words, lambda: collator([labels, dict(labels)]))
