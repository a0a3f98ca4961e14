"""Rows as a run would measure them, with everything that a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from loadtest.rows import EncoderRow, PolicyRow, TranslationRow

_COMMON = {"settings": "2 threads", "rounds": 3, "spread": 1.1, "when": "2026-11-16T08:00+00:00"}


def translated(contestant: str, rate: float, *, beams: int = 1, at_once: int = 64, **more: Any) -> TranslationRow:
    chrf = {"chrf_own_fp32": 100.0, "chrf_ctranslate2": 100.0}
    fixed = {"contestant": contestant, "beams": beams, "at_once": at_once, "sentences": 256}
    return TranslationRow(**_COMMON | fixed | {"sentences_per_second": rate} | chrf | more)


def classified(contestant: str, rate: float, *, model: str = "vit-b16") -> EncoderRow:
    fixed = {"contestant": contestant, "model": model, "items": 24, "difference": 0.0}
    return EncoderRow(**_COMMON | fixed | {"items_per_second": rate})


def acted(position: int, milliseconds: float) -> PolicyRow:
    fixed = {"contestant": "headwaiter fp32", "position": position, "steps": 180}
    return PolicyRow(**_COMMON | fixed | {"milliseconds": milliseconds})
