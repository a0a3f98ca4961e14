"""Streams of text, as far as it does not matter how one waits."""

from __future__ import annotations

from typing import Any

from service.client import answers
from service.client.results import Words


class Pieces:
    """Text as it falls; `result` once all has come."""

    def __init__(self) -> None:
        self._result: Words | None = None

    @property
    def result(self) -> Words:
        """The whole text with its score, usage and timing."""
        if self._result is None:
            raise ValueError("The stream has not come to its end; its result is there afterwards.")
        return self._result

    def _piece(self, event: Any) -> str:
        if event.WhichOneof("event") == "done":
            self._result = answers.done(event.done)
            return ""
        return event.delta
