"""Why a sequence ended: by the model's end-of-sequence token, or by a limit of tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwaiter.engine.beam import Hypothesis
from headwaiter.engine.sequence import DecodingParameters, FinishedSequence, finish_sequence
from tests.conftest import Packages
from tests.service.engine.decoder_kit import MAX_NEW_TOKENS, decode_job, decoding_parameters, run_jobs, running_decoder

EOS = 2
PARAMETERS = DecodingParameters(max_new_tokens=3, eos_token_ids=frozenset({EOS}))


@pytest.mark.parametrize(
    ("tokens", "forced_eos_token_id", "expected_tokens", "expected_reason"),
    [
        ((5, EOS), None, (5,), "stop"),
        ((5, 6, EOS), None, (5, 6), "stop"),
        ((5, 6, 7), None, (5, 6, 7), "length"),
        ((5,), None, (5,), "length"),
        ((5, EOS), EOS, (5,), "stop"),
        ((5, 6, EOS), EOS, (5, 6), "length"),
    ],
)
def test_finish_sequence_strips_eos_and_states_reason(
    tokens: tuple[int, ...], forced_eos_token_id: int | None, expected_tokens: tuple[int, ...], expected_reason: str
) -> None:
    params = replace(PARAMETERS, forced_eos_token_id=forced_eos_token_id)
    finished = finish_sequence(Hypothesis(tokens, -0.5), params)
    assert finished == FinishedSequence(expected_tokens, -0.5, expected_reason)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("kind", ["marian", "gpt2"])
def test_decoder_sequence_ended_by_eos_or_limit_states_reason(kind: str, num_beams: int, packages: Packages) -> None:
    package = packages(kind, "fp32").package
    options = {"num_beams": num_beams, "forced_eos_token_id": None, "length_penalty": 0.0}
    endless = decoding_parameters(package, eos_token_ids=frozenset(), **options)
    with running_decoder(package) as decoder:
        (cut_off,) = run_jobs(decoder, [decode_job(package, [5, 6, 7], endless)])
        tokens = cut_off.hypotheses[0].tokens
        ending = replace(endless, eos_token_ids=frozenset(tokens[:2]))
        (ended,) = run_jobs(decoder, [decode_job(package, [5, 6, 7], ending)])
    assert (len(tokens), cut_off.hypotheses[0].finish_reason) == (MAX_NEW_TOKENS, "length")
    assert ended.hypotheses[0].finish_reason == "stop"
    assert len(ended.hypotheses[0].tokens) < MAX_NEW_TOKENS - 1


def test_decoder_prompt_that_fills_cache_ends_with_length(packages: Packages) -> None:
    package = packages("gpt2", "fp32").package
    params = decoding_parameters(package, eos_token_ids=frozenset())
    with running_decoder(package) as decoder:
        (result,) = run_jobs(decoder, [decode_job(package, [5] * 55, params)])
    assert len(result.hypotheses[0].tokens) < MAX_NEW_TOKENS
    assert result.hypotheses[0].finish_reason == "length"
