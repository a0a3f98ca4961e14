"""Metrics that only remember."""

from __future__ import annotations

import threading
from collections import Counter


class Counts:
    """What would be counted."""

    def __init__(self) -> None:
        self.codes: Counter[tuple[str, str]] = Counter()
        self.tokens: Counter[str] = Counter()
        self.engine: dict[str, float] = {}  # as it was last observed
        self.told = threading.Condition()

    def finished(self, method: str, code: str, seconds: float) -> None:  # noqa: ARG002
        with self.told:
            self.codes[method, code] += 1
            self.told.notify_all()

    def wait_for(self, method: str, code: str) -> None:
        with self.told:
            assert self.told.wait_for(lambda: self.codes[method, code], timeout=10), self.codes

    def stages(self, queue_ms: float, prepare_ms: float, run_ms: float) -> None: ...

    def usage(self, input_tokens: int, output_tokens: int, images: int) -> None:
        self.tokens.update(input=input_tokens, output=output_tokens, images=images)

    def first_token(self, method: str, seconds: float) -> None: ...

    def between_tokens(self, method: str, seconds: float) -> None: ...

    def describe(self, **facts: str) -> None: ...

    def observe_engine(self, snapshot: dict[str, float]) -> None:
        self.engine = snapshot

    def ready(self, is_ready: bool) -> None: ...

    def close(self) -> None: ...
