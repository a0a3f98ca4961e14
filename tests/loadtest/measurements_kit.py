"""Builders of measurements with defaults for the fields that a test does not use."""

from __future__ import annotations

from typing import Any

from loadtest.engine.measurements import EncoderMeasurement, PolicyMeasurement, TranslationMeasurement

_COMMON = {"settings": "2 threads", "rounds": 3, "spread": 1.1, "when": "2026-11-16T08:00+00:00"}


def translation_measurement(
    backend: str, rate: float, *, beams: int = 1, concurrency: int = 64, **fields: Any
) -> TranslationMeasurement:
    chrf = {"chrf_vs_own_fp32": 100.0, "chrf_vs_ctranslate2_fp32": 100.0}
    setting = {"backend": backend, "beams": beams, "concurrency": concurrency, "sentences": 256}
    return TranslationMeasurement(**_COMMON | setting | {"sentences_per_second": rate} | chrf | fields)


def encoder_measurement(backend: str, rate: float, *, model: str = "vit-b16") -> EncoderMeasurement:
    setting = {"backend": backend, "model": model, "items": 24, "difference": 0.0}
    return EncoderMeasurement(**_COMMON | setting | {"items_per_second": rate})


def policy_measurement(position: int, milliseconds: float) -> PolicyMeasurement:
    setting = {"backend": "headwaiter fp32", "position": position, "steps": 180}
    return PolicyMeasurement(**_COMMON | setting | {"milliseconds": milliseconds})
