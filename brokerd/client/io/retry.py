"""When a request is retried, and when it fails for good. Pure: time and randomness are passed in. Does no I/O."""

from __future__ import annotations

from brokerd.backoff import backoff_ms
from brokerd.errors import AuthenticationError, BrokerdError, BrokerUnreachableError, ErrorCode, WireError

# How long a client that was never accepted retries after a refusal: a restart or a reload of tokens takes less, and a user with a
# wrong token should soon be told. Once accepted, the call's own time limits retries.
REFUSALS_MS = 3_000
# These codes say "refresh", but a broker that responds knows all of its topics: waiting would only hide a mistyped name.
_DEFINITE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class NoBrokerAnsweredError(BrokerUnreachableError):
    """Every attempt that there was time for has failed; the caller must not retry."""


def is_repeatable(error: BaseException) -> bool:
    """True if the same request may succeed a moment later."""
    if isinstance(error, WireError):
        return error.retriable and error.code not in _DEFINITE
    if isinstance(error, AuthenticationError):
        return error.may_pass
    return isinstance(error, BrokerUnreachableError) and not isinstance(error, NoBrokerAnsweredError)


class Retries:
    """The retry state of one call: after each failure, `failed` returns how long to wait, or that it is over."""

    def __init__(
        self, *, timeout_ms: int, backoff_initial_ms: int, backoff_max_ms: int, now_ms: int, was_accepted: bool = False
    ) -> None:
        """`was_accepted`: the broker has accepted this client before, so a refusal is likely to be temporary."""
        self._timeout_ms = timeout_ms
        self._refusals_ms = timeout_ms if was_accepted else min(timeout_ms, REFUSALS_MS)
        self._backoff_initial_ms = backoff_initial_ms
        self._backoff_max_ms = backoff_max_ms
        self._started_ms = now_ms
        self.failures = 0

    def attempt_timeout_ms(self, request_timeout_ms: int, *, now_ms: int) -> int:
        """How long the next attempt may take; at least 1."""
        return max(1, min(request_timeout_ms, self._started_ms + self._timeout_ms - now_ms))

    def left_ms(self, error: BaseException, *, now_ms: int) -> int:
        """How much longer it will be retried if `error` persists."""
        return max(0, self._started_ms + self._limit_ms(error) - now_ms)

    def succeeded(self, *, now_ms: int) -> None:
        """Starts over: the next failure has the whole time again."""
        self._started_ms = now_ms
        self.failures = 0

    def failed(self, error: BaseException, *, now_ms: int, random: float) -> int | None:
        """Wait in ms before the next attempt, or None: retrying is pointless, or no time is left."""
        if not is_repeatable(error):
            return None
        self.failures += 1
        wait_ms = backoff_ms(self.failures, first_ms=self._backoff_initial_ms, max_ms=self._backoff_max_ms, random=random)
        if isinstance(error, WireError):
            wait_ms = max(wait_ms, error.retry_after_ms)
        return wait_ms if now_ms + wait_ms < self._started_ms + self._limit_ms(error) else None

    def _limit_ms(self, error: BaseException) -> int:
        return self._refusals_ms if isinstance(error, AuthenticationError) else self._timeout_ms

    def final_error(self, error: BrokerdError, addresses: str, *, now_ms: int) -> BrokerdError:
        """The error to raise once `failed` has returned None; says where and for how long it was tried."""
        tried = f"{(now_ms - self._started_ms) / 1000:.1f} s"
        if isinstance(error, BrokerUnreachableError) and is_repeatable(error):
            return NoBrokerAnsweredError(f"no broker responded at {addresses} in {tried}: {error.message}")
        if isinstance(error, (WireError, AuthenticationError)) and is_repeatable(error):
            error.message += f" (tried {self.failures} times in {tried})"
        return error
