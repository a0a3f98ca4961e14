"""Performance targets of the engine and whether the measurements meet them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadtest.engine.measurements import (
    EncoderMeasurement,
    Measurement,
    PolicyMeasurement,
    TranslationMeasurement,
    ratio,
)

_THROUGHPUT = 1.3  # × CTranslate2
_LATENCY = 1.0  # × CTranslate2
_TRANSFORMERS = 5.0  # × transformers
BARE_SESSION = 0.97  # × ONNX Runtime
_CHRF_LOSS = 1.0  # chrF points in excess of CTranslate2's loss
_LATE_STEP = 1.2  # × an early step
_EARLY, _LATE = 5, 100


@dataclass(frozen=True, slots=True)
class Target:
    title: str
    measured: float
    bound: float
    at_least: bool = True
    unit: str = "×"

    @property
    def met(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    @property
    def required(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g} {self.unit}"

    @property
    def result(self) -> str:
        gap = abs(self.measured - self.bound)
        size = f"{100 * gap / self.bound:.0f} %" if self.unit == "×" else f"{gap:.1f} {self.unit}"
        return f"{'met' if self.met else 'missed'} by {size}"


def targets(rows: Mapping[str, Sequence[Measurement]]) -> list[Target]:
    """Evaluate targets from measurements by part name; targets without measurements are omitted."""
    evaluated: list[Target] = []
    evaluated += _translation([row for row in rows.get("translation", ()) if isinstance(row, TranslationMeasurement)])
    evaluated += _encoders([row for row in rows.get("encoders", ()) if isinstance(row, EncoderMeasurement)])
    evaluated += _policy([row for row in rows.get("policy", ()) if isinstance(row, PolicyMeasurement)])
    return evaluated


def _translation(rows: Sequence[TranslationMeasurement]) -> Iterator[Target]:
    own = [row for row in rows if row.engine == "headwaiter"]
    for row in own:
        if (speed := ratio(row, rows, f"ctranslate2 {row.precision}")) is not None:
            kind, bound = ("single-request speed", _LATENCY) if row.concurrency == 1 else ("throughput", _THROUGHPUT)
            yield Target(f"{kind} compared with CTranslate2: {_setting_title(row)}", speed, bound)
    for row in own:
        if row.concurrency > 1 and (speed := ratio(row, rows, "transformers fp32")) is not None:
            yield Target(f"throughput compared with transformers: {_setting_title(row)}", speed, _TRANSFORMERS)
    for row in own:
        peer = [other for other in rows if other.setting == row.setting and other.backend == "ctranslate2 int8"]
        if row.precision == "int8" and row.concurrency == max(other.concurrency for other in rows) and peer:
            loss = _excess_loss(row, peer[0])
            if loss is not None:
                yield Target(
                    f"chrF loss in excess of CTranslate2's: {_setting_title(row)}", loss, _CHRF_LOSS, False, "points"
                )


def _excess_loss(own: TranslationMeasurement, peer: TranslationMeasurement) -> float | None:
    if own.chrf_vs_own_fp32 is None or peer.chrf_vs_own_fp32 is None:
        return None
    return peer.chrf_vs_own_fp32 - own.chrf_vs_own_fp32


def _setting_title(row: TranslationMeasurement) -> str:
    search = f"{row.beams} beams" if row.beams > 1 else "greedy"
    return f"{row.precision}, {search}, concurrency {row.concurrency}"


def _encoders(rows: Sequence[EncoderMeasurement]) -> Iterator[Target]:
    for row in rows:
        speed = ratio(row, rows, f"onnxruntime {row.precision}")
        if row.engine == "headwaiter" and speed is not None:
            yield Target(f"encoder compared with a bare session: {row.model}, {row.precision}", speed, BARE_SESSION)


def _policy(rows: Sequence[PolicyMeasurement]) -> Iterator[Target]:
    milliseconds = {row.position: row.milliseconds for row in rows}
    if milliseconds.keys() >= {_EARLY, _LATE}:
        title = f"policy step at position {_LATE} compared with position {_EARLY}"
        yield Target(title, milliseconds[_LATE] / milliseconds[_EARLY], _LATE_STEP, at_least=False)
