"""chrF, the character n-gram F-score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_BETA = 2.0  # weight of recall relative to precision


def chrf(texts: Sequence[str], references: Sequence[str], max_order: int = 6) -> float:
    """Return the corpus chrF (Popović 2015) from 0 to 100, ignoring whitespace as sacreBLEU does."""
    precisions, recalls = [], []
    for size in range(1, max_order + 1):
        matched = total = expected_total = 0
        for text, reference in zip(texts, references, strict=True):
            actual, expected = _ngrams(text, size), _ngrams(reference, size)
            matched += (actual & expected).total()
            total += actual.total()
            expected_total += expected.total()
        if total and expected_total:
            precisions.append(matched / total)
            recalls.append(matched / expected_total)
    if not sum(precisions):
        return 0.0
    precision, recall = (sum(values) / len(values) for values in (precisions, recalls))
    return 100 * (1 + _BETA**2) * precision * recall / (_BETA**2 * precision + recall)


def _ngrams(text: str, size: int) -> Counter[str]:
    characters = "".join(text.split())
    return Counter(characters[i : i + size] for i in range(len(characters) - size + 1))
