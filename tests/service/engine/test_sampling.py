"""Token selection compared with the logits processors of transformers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from headwaiter.engine.sampling import (
    Sampling,
    filter_candidates,
    forbid_repeated_ngrams,
    penalise_repetition,
    sample_token,
)

VOCABULARY = 53


@settings(deadline=None)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.2, 3.0),
    top_k=st.integers(0, VOCABULARY + 3),
    top_p=st.floats(0.05, 1.0),
    spread=st.floats(0.1, 8.0),
)
def test_filter_candidates_random_logits_match_transformers(
    seed: int, temperature: float, top_k: int, top_p: float, spread: float
) -> None:
    logits = np.random.default_rng(seed).standard_normal(VOCABULARY).astype(np.float32) * np.float32(spread)
    scores = TemperatureLogitsWarper(temperature)(None, torch.from_numpy(logits)[None])
    if 0 < top_k < VOCABULARY:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1.0:
        scores = TopPLogitsWarper(top_p)(None, scores)
    expected = scores.softmax(-1)[0].numpy()
    tokens, probabilities = filter_candidates(logits, np.arange(VOCABULARY), Sampling(temperature, top_k, top_p))
    actual = np.zeros(VOCABULARY, np.float32)
    actual[tokens] = probabilities
    np.testing.assert_allclose(actual, expected, atol=2e-6)


def test_sample_token_many_draws_follow_probabilities() -> None:
    rng = np.random.default_rng(5)
    counts = np.bincount(
        [sample_token(np.array([4, 2, 9]), np.array([0.6, 0.3, 0.1]), rng) for _ in range(20_000)], minlength=10
    )
    np.testing.assert_allclose(counts[[4, 2, 9]] / 20_000, [0.6, 0.3, 0.1], atol=0.015)
    assert counts.sum() == counts[[4, 2, 9]].sum()


@given(seed=st.integers(0, 1000), length=st.integers(1, 40), penalty=st.floats(0.5, 3.0))
def test_penalise_repetition_random_tokens_match_transformers(seed: int, length: int, penalty: float) -> None:
    rng = np.random.default_rng(seed)
    logits, tokens = rng.standard_normal(VOCABULARY).astype(np.float32), rng.integers(0, VOCABULARY, length)
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.from_numpy(tokens)[None], torch.from_numpy(logits)[None])
    penalise_repetition(logits, tokens.tolist(), penalty)
    np.testing.assert_allclose(logits, expected[0].numpy(), rtol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@given(tokens=st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_forbid_repeated_ngrams_random_tokens_match_transformers(size: int, tokens: list[int]) -> None:
    scores = np.zeros(VOCABULARY, np.float32)
    expected = NoRepeatNGramLogitsProcessor(size)(torch.tensor([tokens]), torch.zeros(1, VOCABULARY))
    forbid_repeated_ngrams(scores, tokens, size)
    np.testing.assert_array_equal(scores, expected[0].numpy())
