"""How alike two sets of sentences are, letter by letter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_BETA = 2.0  # recall counts so many times as much as precision


def chrf(texts: Sequence[str], references: Sequence[str], longest: int = 6) -> float:
    """chrF of a corpus (Popović 2015) as sacreBLEU counts it: spaces left out, from 0 to 100."""
    precisions, recalls = [], []
    for size in range(1, longest + 1):
        same = found = wanted = 0
        for text, reference in zip(texts, references, strict=True):
            got, expected = _ngrams(text, size), _ngrams(reference, size)
            same += (got & expected).total()
            found += got.total()
            wanted += expected.total()
        if found and wanted:
            precisions.append(same / found)
            recalls.append(same / wanted)
    if not sum(precisions):
        return 0.0
    precision, recall = (sum(values) / len(values) for values in (precisions, recalls))
    return 100 * (1 + _BETA**2) * precision * recall / (_BETA**2 * precision + recall)


def _ngrams(text: str, size: int) -> Counter[str]:
    letters = "".join(text.split())
    return Counter(letters[i : i + size] for i in range(len(letters) - size + 1))
