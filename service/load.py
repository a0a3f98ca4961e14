"""What a replica tells the autoscaler about itself."""

from __future__ import annotations

import time
from typing import Any

from service.engine.worker import Engine
from service.scaling import SHARE, WAIT


class LoadGauge:
    """How much of an engine is in use: of its rows; without rows, of its threads' time since it was last asked."""

    def __init__(self, engine: Engine[Any]) -> None:
        self._engine = engine
        self._asked, self._worked = time.monotonic(), self._work_seconds()

    def read(self) -> dict[str, float]:
        return {SHARE: self._share(), WAIT: self._engine.estimated_wait() or 0.0}

    def _share(self) -> float:
        meters, now = self._engine.meters, time.monotonic()
        if meters.rows:
            return meters.rows_in_use / meters.rows
        worked = self._work_seconds()
        could_have = max(len(self._engine.line.takers), 1) * max(now - self._asked, 1e-3)
        share = min(1.0, (worked - self._worked) / could_have)
        self._asked, self._worked = now, worked
        return share

    def _work_seconds(self) -> float:
        meters = self._engine.meters
        return meters.encode_seconds + meters.decode_seconds
