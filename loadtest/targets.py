"""What the engine set out to reach, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadtest.rows import EncoderRow, PolicyRow, Row, TranslationRow, ratio

_THROUGHPUT = 1.3  # × CTranslate2
_LATENCY = 1.0
_TRANSFORMERS = 5.0
BARE_SESSION = 0.97
_LOSS = 1.0  # points of chrF beyond CTranslate2's own loss
_LATE_STEP = 1.2
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
    def wanted(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g} {self.unit}"

    @property
    def result(self) -> str:
        gap = abs(self.measured - self.bound)
        size = f"{100 * gap / self.bound:.0f} %" if self.unit == "×" else f"{gap:.1f} {self.unit}"
        return f"{'met' if self.met else 'missed'} by {size}"


def targets(rows: Mapping[str, Sequence[Row]]) -> list[Target]:
    """By the names of parts; of what was not measured nothing is said."""
    found: list[Target] = []
    found += _translation([row for row in rows.get("translation", ()) if isinstance(row, TranslationRow)])
    found += _encoders([row for row in rows.get("encoders", ()) if isinstance(row, EncoderRow)])
    found += _policy([row for row in rows.get("policy", ()) if isinstance(row, PolicyRow)])
    return found


def _translation(rows: Sequence[TranslationRow]) -> Iterator[Target]:
    ours = [row for row in rows if row.engine == "headwaiter"]
    for row in ours:
        if (times := ratio(row, rows, f"ctranslate2 {row.precision}")) is not None:
            kind, bound = ("latency of one", _LATENCY) if row.at_once == 1 else ("throughput", _THROUGHPUT)
            yield Target(f"{kind} beside CTranslate2: {_named(row)}", times, bound)
    for row in ours:
        if row.at_once > 1 and (times := ratio(row, rows, "transformers fp32")) is not None:
            yield Target(f"throughput beside transformers: {_named(row)}", times, _TRANSFORMERS)
    for row in ours:
        peer = [r for r in rows if r.setting == row.setting and r.contestant == "ctranslate2 int8"]
        if row.precision == "int8" and row.at_once == max(r.at_once for r in rows) and peer:
            loss = _lost(row, peer[0])
            if loss is not None:
                yield Target(f"chrF lost beyond CTranslate2's loss: {_named(row)}", loss, _LOSS, False, "points")


def _lost(ours: TranslationRow, peers: TranslationRow) -> float | None:
    if ours.chrf_own_fp32 is None or peers.chrf_own_fp32 is None:
        return None
    return peers.chrf_own_fp32 - ours.chrf_own_fp32


def _named(row: TranslationRow) -> str:
    search = f"{row.beams} beams" if row.beams > 1 else "greedy"
    return f"{row.precision}, {search}, {row.at_once} at once"


def _encoders(rows: Sequence[EncoderRow]) -> Iterator[Target]:
    for row in rows:
        times = ratio(row, rows, f"onnxruntime {row.precision}")
        if row.engine == "headwaiter" and times is not None:
            yield Target(f"encoder beside a bare session: {row.model}, {row.precision}", times, BARE_SESSION)


def _policy(rows: Sequence[PolicyRow]) -> Iterator[Target]:
    times = {row.position: row.milliseconds for row in rows}
    if times.keys() >= {_EARLY, _LATE}:
        title = f"a policy's step at position {_LATE} beside one at {_EARLY}"
        yield Target(title, times[_LATE] / times[_EARLY], _LATE_STEP, at_least=False)
