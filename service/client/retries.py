"""When a call is made again."""

from __future__ import annotations

import math
import random
import threading
import time
from dataclasses import dataclass

from service.client.errors import DeadlineExceeded, HeadwaiterError, Overloaded, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Seconds between attempts double from `first_wait` to `longest_wait`, each with some chance in it.

    All calls of a client share `budget` repeats; each call that succeeds earns `earned` of one, so that a service that
    is down is not asked several times as often as one that is up.

    An attempt that stays silent for `patience` seconds, with half of the call's time or more still left, is given up
    once: who had it may have been cut off from the network, and would be waited for to the end. Only the caller knows
    what a call may rightly take, so there is no end to it unless told.
    """

    attempts: int = 5
    first_wait: float = 0.1
    longest_wait: float = 2.0
    budget: float = 10.0
    earned: float = 0.1
    patience: float = math.inf


NO_RETRIES = Retries(attempts=1)


class Budget:
    """Repeats that are left, for all threads of a client."""

    def __init__(self, retries: Retries) -> None:
        self._most, self._earned = retries.budget, retries.earned
        self._left = retries.budget
        self._lock = threading.Lock()

    def spend(self) -> bool:
        with self._lock:
            if self._left < 1:
                return False
            self._left -= 1
            return True

    def earn(self) -> None:
        with self._lock:
            self._left = min(self._most, self._left + self._earned)


class Attempts:
    """One call's attempts, all within one deadline."""

    def __init__(self, retries: Retries, budget: Budget, timeout: float | None) -> None:
        self._retries, self._budget = retries, budget
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._failed = 0
        self._is_short = self._may_wait = False  # an attempt may be given up; one was, the next is not

    def remaining(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def turn(self) -> float | None:
        """Seconds that the next attempt may take."""
        remaining = self.remaining()
        if remaining is None or self._may_wait or self._failed + 1 >= self._retries.attempts:
            return remaining
        self._is_short = self._retries.patience <= remaining / 2
        return self._retries.patience if self._is_short else remaining

    def succeeded(self) -> None:
        self._budget.earn()

    def wait_after(self, error: HeadwaiterError, *, begun: bool = False) -> float:
        """Seconds until the next attempt; raises the error where there is none."""
        self._failed += 1
        wait = self._wait(error)
        remaining = self.remaining()
        if begun or wait is None or self._failed >= self._retries.attempts:
            raise error
        if (remaining is not None and wait >= remaining) or not self._budget.spend():
            raise error
        return wait

    def _wait(self, error: HeadwaiterError) -> float | None:
        backoff = min(self._retries.longest_wait, self._retries.first_wait * 2 ** (self._failed - 1))
        spread = random.uniform(0.5, 1.0) * backoff
        match error:
            case Unavailable():
                return max(spread, error.retry_after or 0.0)
            case Overloaded() if error.retry_after is not None:
                return error.retry_after + spread
            case DeadlineExceeded() if self._is_short and not self._may_wait:
                self._may_wait = True
                return 0.0
        return None
