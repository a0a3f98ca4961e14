"""Reversing and sorting letters: tasks that a decoder cannot solve without its source."""

from __future__ import annotations

from string import ascii_lowercase

import numpy as np

from headwaiter_export.zoo.data.rewriting import Rewriting


class Reversing(Rewriting):
    """Texts of up to `length` letters."""

    name = "reversing"

    def __init__(self, length: int = 12) -> None:
        super().__init__(ascii_lowercase, length)
        self.chance_level = 1 / (length * len(ascii_lowercase))  # generating a single letter

    def example(self, rng: np.random.Generator) -> tuple[list[str], list[str]]:
        letters = rng.choice(list(ascii_lowercase), int(rng.integers(1, self.length + 1))).tolist()
        return letters, self.expected_output(letters)

    def expected_output(self, letters: list[str]) -> list[str]:
        return letters[::-1]


class Sorting(Reversing):
    name = "sorting"

    def expected_output(self, letters: list[str]) -> list[str]:
        return sorted(letters)
