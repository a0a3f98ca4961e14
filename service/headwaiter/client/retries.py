"""Retry policy of the clients: which errors are retried, how long to back off and how many retries are allowed."""

from __future__ import annotations

import math
import random
import threading
import time
from dataclasses import dataclass

from headwaiter.client.errors import DeadlineExceeded, HeadwaiterError, Overloaded, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How a client retries failed calls. All durations are in seconds.

    The backoff doubles from `initial_backoff` to `max_backoff`, with jitter. All calls of a client share a budget of
    `budget` retries, and each successful call returns `budget_per_success` to it. The budget bounds the extra load on
    a service that is down.

    If an attempt receives no response within `attempt_timeout`, and that is at most half of the call's remaining time,
    the attempt is abandoned and the call is retried: the replica may have lost its network connection. There is no
    attempt timeout by default, because only the caller knows how long a call may take.
    """

    max_attempts: int = 5
    initial_backoff: float = 0.1
    max_backoff: float = 2.0
    budget: float = 10.0
    budget_per_success: float = 0.1
    attempt_timeout: float = math.inf


NO_RETRIES = RetryPolicy(max_attempts=1)


class RetryBudget:
    """Retries that a client has left. Thread-safe."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._capacity, self._per_success = policy.budget, policy.budget_per_success
        self._remaining = policy.budget
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take one retry; return False if none is left."""
        with self._lock:
            if self._remaining < 1:
                return False
            self._remaining -= 1
            return True

    def replenish(self) -> None:
        with self._lock:
            self._remaining = min(self._capacity, self._remaining + self._per_success)


class Attempts:
    """The attempts of one call, all within one deadline."""

    def __init__(self, policy: RetryPolicy, budget: RetryBudget, timeout: float | None) -> None:
        self._policy, self._budget = policy, budget
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._failures = 0
        self._is_attempt_limited = False  # the current attempt has a timeout of its own

    def remaining(self) -> float | None:
        """Seconds until the call's deadline, or None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def next_timeout(self) -> float | None:
        """Timeout of the next attempt in seconds, or None without one."""
        remaining = self.remaining()
        is_last = self._failures + 1 >= self._policy.max_attempts
        self._is_attempt_limited = (
            remaining is not None and not is_last and self._policy.attempt_timeout <= remaining / 2
        )
        return self._policy.attempt_timeout if self._is_attempt_limited else remaining

    def record_success(self) -> None:
        self._budget.replenish()

    def backoff_after(self, error: HeadwaiterError, *, has_started: bool = False) -> float:
        """Return the seconds to wait before the next attempt.

        Raises `error` if the call must not be retried: the error is not retryable, the response `has_started`, or
        attempts, time or budget are used up.
        """
        self._failures += 1
        backoff = self._backoff(error)
        remaining = self.remaining()
        if has_started or backoff is None or self._failures >= self._policy.max_attempts:
            raise error
        if (remaining is not None and backoff >= remaining) or not self._budget.take():
            raise error
        return backoff

    def _backoff(self, error: HeadwaiterError) -> float | None:
        """Backoff in seconds, or None if the error is not retryable."""
        backoff = min(self._policy.max_backoff, self._policy.initial_backoff * 2 ** (self._failures - 1))
        jittered = random.uniform(0.5, 1.0) * backoff
        match error:
            case Unavailable():
                return max(jittered, error.retry_after or 0.0)
            case Overloaded() if error.retry_after is not None:
                return error.retry_after + jittered
            case DeadlineExceeded() if self._is_attempt_limited:
                return 0.0
        return None
