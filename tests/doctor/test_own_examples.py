"""The doctor on our own examples: nothing is found."""

from __future__ import annotations

import torch

from examples.phonemes import padded
from examples.phonemes.model import Speller
from examples.phonemes.words import PADDING
from maskgrad import doctor


def test_the_padded_speller_leaks_nothing() -> None:
    torch.manual_seed(0)
    model = Speller(letters=30, sounds=40, width=16, layers=1)
    samples = [
        {"letters": torch.randint(1, 27, (letters,)), "sounds": torch.randint(1, 30, (sounds,))}
        for letters, sounds in ((3, 4), (6, 5), (2, 3), (5, 6))
    ]
    batch = padded.collate(samples)
    real = {key: tensor != PADDING for key, tensor in batch.items()}
    report = doctor.examine(lambda b: padded.loss(model, b), batch, padding=real)
    assert report.ok, str(report)
    assert {"padding-leak", "padding-length", "order"} <= {tried.name for tried in report.experiments}
