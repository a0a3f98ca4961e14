"""In-memory metrics for tests."""

from __future__ import annotations

import threading
from collections import Counter


class Counts:
    """Records counts in memory instead of exporting them."""

    def __init__(self) -> None:
        self.codes: Counter[tuple[str, str]] = Counter()
        self.tokens: Counter[str] = Counter()
        self.engine: dict[str, float] = {}  # the last snapshot
        self.updated = threading.Condition()

    def record_request(self, method: str, code: str, seconds: float) -> None:  # noqa: ARG002
        with self.updated:
            self.codes[method, code] += 1
            self.updated.notify_all()

    def wait_for(self, method: str, code: str) -> None:
        with self.updated:
            assert self.updated.wait_for(lambda: self.codes[method, code], timeout=10), self.codes

    def record_stages(self, queue_ms: float, prepare_ms: float, run_ms: float) -> None: ...

    def record_usage(self, input_tokens: int, output_tokens: int, images: int) -> None:
        self.tokens.update(input=input_tokens, output=output_tokens, images=images)

    def record_time_to_first_token(self, method: str, seconds: float) -> None: ...

    def record_inter_token_latency(self, method: str, seconds: float) -> None: ...

    def describe(self, **facts: str) -> None: ...

    def observe_engine(self, snapshot: dict[str, float]) -> None:
        self.engine = snapshot

    def record_unhealthy(self, cause: str) -> None: ...

    def set_ready(self, is_ready: bool) -> None: ...

    def close(self) -> None: ...
