"""What callers of the Producer hand in, checked and brought into one form. Columns are in columns.py."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from brokerd.config.client import ProducerConfig, check_producer, producer_config
from brokerd.errors import ConfigError
from brokerd.producer.staging import Headers

TIMESTAMP_MS_MAX = (2**63 - 1) // 1000


def config_of(config: Mapping[str, object] | ProducerConfig | None, settings: Mapping[str, object]) -> ProducerConfig:
    """Settings from a mapping by name, from keywords with underscores, or a ready configuration. Raises ConfigError."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    if isinstance(config, ProducerConfig):
        if given:
            raise ConfigError("settings by keyword go with a mapping, not with a ProducerConfig")
        check_producer(config)
        return config
    return producer_config({**(config or {}), **given})


def to_bytes(data: object, name: str) -> bytes | None:
    """Bytes as they are, text as UTF-8. Raises TypeError naming the argument."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"{name} must be bytes, text or None, not {type(data).__name__}: serialize it first")


def checked_timestamp(timestamp_ms: int) -> int:
    """A time in ms that a record can carry. Raises ValueError, TypeError."""
    if not 0 <= (timestamp_ms := operator.index(timestamp_ms)) <= TIMESTAMP_MS_MAX:
        raise ValueError(f"timestamp {timestamp_ms} is out of range: milliseconds since 1970-01-01 UTC")
    return timestamp_ms


def checked_headers(headers: Headers | Mapping[str, bytes]) -> tuple[Headers, int]:
    """Headers as pairs, and about how many bytes they take. Raises TypeError."""
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    size = 0
    for key, value in pairs:
        if not isinstance(key, str) or not (value is None or isinstance(value, bytes)):
            raise TypeError(f"a header is (text, bytes), not ({type(key).__name__}, {type(value).__name__})")
        size += len(key.encode()) + len(value or b"") + 24  # what can not be encoded raises here, in the caller
    return pairs, size
