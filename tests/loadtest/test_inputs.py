from __future__ import annotations

import numpy as np

from loadtest.inputs import batches, texts, together


def test_texts_are_the_same_every_time_and_of_mixed_lengths() -> None:
    first, second = texts(200), texts(200)
    assert all(np.array_equal(a["tokens"], b["tokens"]) for a, b in zip(first, second, strict=True))
    lengths = [len(text["tokens"]) for text in first]
    assert min(lengths) >= 8
    assert max(lengths) <= 128
    assert 24 < np.median(lengths) < 40
    assert lengths != sorted(lengths)


def test_batches_take_every_item_once_and_alike_ones_together() -> None:
    items = texts(50)
    parts = batches(items, 8)
    assert sorted(index for part in parts for index in part) == list(range(50))
    assert [len(part) for part in parts] == [8] * 6 + [2]
    lengths = [len(items[index]["tokens"]) for part in parts for index in part]
    assert lengths == sorted(lengths)


def test_a_batch_is_padded_to_its_longest_and_tells_the_lengths() -> None:
    short, long = np.array([2, 7, 3]), np.array([2, 7, 8, 9, 3])
    feeds = together([{"tokens": t, "segments": np.zeros_like(t)} for t in (short, long)])
    assert feeds["tokens"].tolist() == [[2, 7, 3, 0, 0], [2, 7, 8, 9, 3]]
    assert feeds["lengths"].tolist() == [3, 5]
    assert feeds["segments"].shape == (2, 5)
