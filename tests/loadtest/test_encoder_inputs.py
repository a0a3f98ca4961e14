from __future__ import annotations

import numpy as np

from loadtest.engine.encoder_inputs import batches, collate, texts


def test_texts_are_deterministic_and_have_mixed_lengths() -> None:
    first, second = texts(200), texts(200)
    assert all(np.array_equal(a["tokens"], b["tokens"]) for a, b in zip(first, second, strict=True))
    lengths = [len(text["tokens"]) for text in first]
    assert min(lengths) >= 8
    assert max(lengths) <= 128
    assert 24 < np.median(lengths) < 40
    assert lengths != sorted(lengths)


def test_batches_contain_every_item_once_sorted_by_length() -> None:
    items = texts(50)
    parts = batches(items, 8)
    assert sorted(index for batch in parts for index in batch) == list(range(50))
    assert [len(batch) for batch in parts] == [8] * 6 + [2]
    lengths = [len(items[index]["tokens"]) for batch in parts for index in batch]
    assert lengths == sorted(lengths)


def test_collate_pads_to_longest_and_returns_lengths() -> None:
    short, long = np.array([2, 7, 3]), np.array([2, 7, 8, 9, 3])
    feeds = collate([{"tokens": tokens, "segments": np.zeros_like(tokens)} for tokens in (short, long)])
    assert feeds["tokens"].tolist() == [[2, 7, 3, 0, 0], [2, 7, 8, 9, 3]]
    assert feeds["lengths"].tolist() == [3, 5]
    assert feeds["segments"].shape == (2, 5)
