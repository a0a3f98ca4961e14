"""How fast an engine works when there is more to do than fits at once, and so how long newcomers will wait."""

from __future__ import annotations

_HALF_LIFE = 3.0  # seconds of full work after which an observation counts half

_ENOUGH = 0.5  # seconds: the first turns begin much and finish nothing


class Pace:
    """Work done per second, recent seconds counting most."""

    def __init__(self) -> None:
        self._work = self._seconds = 0.0

    def note(self, work: float, seconds: float) -> None:
        kept = 0.5 ** (seconds / _HALF_LIFE)
        self._work, self._seconds = kept * self._work + work, kept * self._seconds + seconds

    @property
    def rate(self) -> float | None:
        """None as long as nothing is known."""
        if not self._work or self._seconds < _ENOUGH:
            return None
        return self._work / self._seconds
