from __future__ import annotations

from loadtest.sentences import sentences


def test_are_the_same_every_time_and_others_for_another_seed() -> None:
    assert sentences(64) == sentences(64)
    assert sentences(64) != sentences(64, seed=21)


def test_fewer_are_the_first_of_more() -> None:
    assert sentences(256)[:16] == sentences(16)


def test_are_different_whole_and_of_very_different_lengths() -> None:
    found = sentences(256)
    assert len(set(found)) == 256
    assert all(text.endswith(("。", "！")) and not text.startswith("，") and "，，" not in text for text in found)
    lengths = sorted(map(len, found))
    assert lengths[-1] > 3 * lengths[0]
