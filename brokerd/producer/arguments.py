"""Checks and normalizes the arguments of Producer methods; columns.py does so for columns."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

from brokerd.config.client import ProducerConfig, check_producer, producer_config
from brokerd.config.settings import given_config

_TIMEOUT_MAX_S = 2**31  # decades
Headers = Sequence[tuple[str, bytes | None]]
TIMESTAMP_MS_MAX = (2**63 - 1) // 1000


def config_of(config: Mapping[str, object] | ProducerConfig | None, settings: Mapping[str, object]) -> ProducerConfig:
    """The configuration: as given, or from a mapping by name and keywords with underscores. Raises ConfigError."""
    checked = given_config(ProducerConfig, config, settings, producer_config)
    check_producer(checked)
    return checked


def to_bytes(data: object, name: str) -> bytes | None:
    """Returns bytes unchanged, and encodes text as UTF-8. Raises TypeError and ValueError naming the argument."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, str):
        return _encoded(data, name)
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"{name} must be bytes, text or None, not {type(data).__name__}: serialize it first")


def checked_timestamp(timestamp_ms: int) -> int:
    """Returns a timestamp that a record can carry, in ms. Raises ValueError, TypeError."""
    if not 0 <= (timestamp_ms := checked_int(timestamp_ms, "timestamp")) <= TIMESTAMP_MS_MAX:
        raise ValueError(f"timestamp {timestamp_ms} is out of range: milliseconds since 1970-01-01 UTC")
    return timestamp_ms


def checked_int(number: object, name: str) -> int:
    """Returns a whole number. Raises TypeError naming the argument."""
    try:
        return operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be a whole number, not {type(number).__name__}") from None


def checked_timeout_ms(timeout: float) -> int:
    """Converts a timeout from seconds to ms. Raises TypeError, ValueError."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
    if not timeout >= 0:
        raise ValueError(f"timeout must not be negative, it is {timeout}: 0 does not wait, None waits without a limit")
    return int(min(timeout, _TIMEOUT_MAX_S) * 1000)


def checked_headers(headers: Headers | Mapping[str, bytes]) -> tuple[Headers, int]:
    """Headers as pairs, and their approximate size in bytes. Raises TypeError, ValueError."""
    try:
        pairs = [(key, value) for key, value in (headers.items() if isinstance(headers, Mapping) else headers)]
    except (TypeError, ValueError):
        raise TypeError("headers must be pairs of (text, bytes), or a mapping of text to bytes") from None
    size = 0
    for key, value in pairs:
        if not isinstance(key, str) or not (value is None or isinstance(value, bytes)):
            raise TypeError(f"a header is (text, bytes), not ({type(key).__name__}, {type(value).__name__})")
        size += len(_encoded(key, "a header's key")) + len(value or b"") + 24
    return pairs, size


def _encoded(text: str, name: str) -> bytes:
    """Encodes text as UTF-8 in the calling thread, so that the caller gets the ValueError."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is no text that UTF-8 can hold: {error.reason} at position {error.start}") from None
