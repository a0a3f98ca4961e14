"""Opens the engine that the graphs of a package need."""

from __future__ import annotations

from typing import Any

from headwaiter.engine.batcher import open_batcher
from headwaiter.engine.decoder_pool import open_decoder
from headwaiter.engine.episodes import Episodes
from headwaiter.engine.session import Session
from headwaiter.engine.settings import ModelSettings
from headwaiter.engine.worker import Engine
from headwaiter.package.manifest import padded_length


def open_engine(session: Session, settings: ModelSettings, *, max_prompt_tokens: int | None = None) -> Engine[Any]:
    """Open episodes for a policy, a decoder for a package with a decoder graph, else a batcher. It is not started.

    `max_prompt_tokens` is the longest prompt that the task passes to a decoder; None means that there is no limit.
    """
    engine = _open_engine(session, settings, max_prompt_tokens)
    engine.health.run_timeout_s = settings.run_timeout_s
    return engine


def _open_engine(session: Session, settings: ModelSettings, max_prompt_tokens: int | None) -> Engine[Any]:
    manifest = session.package.manifest
    if manifest.policy is not None:
        return Episodes(session, slots=settings.max_sequences)
    if "decoder" not in manifest.graphs:
        return open_batcher(session, token_budget=settings.batch.tokens, pixel_budget=settings.batch.pixels)
    max_length = decoder_max_length(manifest.limits["max_length"], settings.limits.new_tokens, max_prompt_tokens)
    slots = settings.max_sequences
    return open_decoder(session, slots=slots, max_length=max_length, max_beams=min(settings.limits.num_beams, slots))


def decoder_max_length(limit: int, max_new_tokens: int, max_prompt_tokens: int | None) -> int:
    """Return the tokens per slot of the KV cache: a prompt and its generated tokens, padded, at most `limit`."""
    return limit if max_prompt_tokens is None else min(limit, padded_length(max_prompt_tokens + max_new_tokens))
