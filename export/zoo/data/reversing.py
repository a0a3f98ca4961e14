"""Letters, to be written backwards or in the order of the alphabet: what a decoder cannot do without its source."""

from __future__ import annotations

from string import ascii_lowercase

import numpy as np

from export.zoo.data.rewriting import Rewriting


class Reversing(Rewriting):
    """Texts of `length` letters at most."""

    name = "reversing"

    def __init__(self, length: int = 12) -> None:
        super().__init__(ascii_lowercase, length)
        self.chance = 1 / (length * len(ascii_lowercase))  # writing one letter and no more

    def example(self, rng: np.random.Generator) -> tuple[list[str], list[str]]:
        letters = rng.choice(list(ascii_lowercase), int(rng.integers(1, self.length + 1))).tolist()
        return letters, self.answer(letters)

    def answer(self, letters: list[str]) -> list[str]:
        return letters[::-1]


class Sorting(Reversing):
    name = "sorting"

    def answer(self, letters: list[str]) -> list[str]:
        return sorted(letters)
