from __future__ import annotations

import pytest

from loadtest.engine.chrf import chrf

# Scores of sacreBLEU 2.6.0: CHRF().corpus_score(texts, [references]).
SACREBLEU = [
    (["The server is down."], ["The server is down."], 100.0),
    (["it rains  today"], ["it rains today"], 100.0),
    (["a"], ["a"], 100.0),
    (["abc"], ["xyz"], 0.0),
    ([""], ["word"], 0.0),
    (["the cat"], ["the hat"], 28.055555555555557),
    (["服务器崩溃了"], ["服务器已经崩溃"], 24.34979544126242),
    (["ab", "the cat sat"], ["abc", "the cat sat down"], 64.73238382428086),
    (
        ["The server crashed, try again later."],
        ["The server is down, please try again later."],
        57.855178765984824,
    ),
]


@pytest.mark.parametrize(("texts", "references", "score"), SACREBLEU)
def test_chrf_matches_sacrebleu(texts: list[str], references: list[str], score: float) -> None:
    assert chrf(texts, references) == pytest.approx(score, abs=1e-9)


def test_chrf_missing_reference_raises() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        chrf(["one", "two"], ["one"])
