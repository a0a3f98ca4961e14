"""What the sync and async text streams share."""

from __future__ import annotations

from typing import Any

from headwaiter.client import responses
from headwaiter.client.results import GeneratedText


class TextStreamBase:
    """Generated text in chunks; `result` is available after the last one."""

    def __init__(self) -> None:
        self._result: GeneratedText | None = None

    @property
    def result(self) -> GeneratedText:
        """The complete text with score, usage and timing. Raises ValueError before the end of the stream."""
        if self._result is None:
            raise ValueError("The stream has not ended; `result` is available after the last chunk.")
        return self._result

    def _handle_event(self, event: Any) -> str:
        """Return the event's text; store the result of the final event, which has none."""
        if event.WhichOneof("event") == "done":
            self._result = responses.done(event.done)
            return ""
        return event.delta
