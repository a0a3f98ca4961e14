from __future__ import annotations

from loadtest.sentences import sentences


def test_sentences_depend_only_on_seed() -> None:
    assert sentences(64) == sentences(64)
    assert sentences(64) != sentences(64, seed=21)


def test_sentences_smaller_count_is_prefix() -> None:
    assert sentences(256)[:16] == sentences(16)


def test_sentences_are_unique_complete_and_of_mixed_length() -> None:
    texts = sentences(256)
    assert len(set(texts)) == 256
    assert all(text.endswith(("。", "！")) and not text.startswith("，") and "，，" not in text for text in texts)
    lengths = sorted(map(len, texts))
    assert lengths[-1] > 3 * lengths[0]
