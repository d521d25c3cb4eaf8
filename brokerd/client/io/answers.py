"""What a broker answers is checked before anything is made of it: one that is broken or hostile costs an error that says what is
wrong, never a traceback, a wait of weeks or all memory. Texts are made fit for people in brokerd/wire/texts.py.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TypeVar

from brokerd.config.settings import INT64_MAX
from brokerd.errors import UnknownServerError
from brokerd.ids import ProducerIdAndEpoch, topic_name_problem
from brokerd.wire.texts import plain_text

logger = logging.getLogger(__name__)

T = TypeVar("T")
# A broker that has too much to do asks for tens or hundreds of ms.
THROTTLE_MAX_MS = 30_000
TIMESTAMP_MAX_MS = INT64_MAX // 1_000  # of what a record can carry, in microseconds
_EPOCH_MAX = 2**15 - 1
_TOPIC_ID_BYTES = 16
_PORT_MAX = 65_535
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}|\[?[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9._-]{1,32})?\]?")
_VALUE_MAX_CHARACTERS = 60


def senseless(what: str, problem: str) -> UnknownServerError:
    """The error for an answer that no correct broker gives."""
    return UnknownServerError(f"the broker's answer to {what} makes no sense: {problem}")


def throttle_ms(asked_ms: int) -> int:
    """How long to wait because the broker asks for it; no broker holds a client up for longer than THROTTLE_MAX_MS."""
    if asked_ms > THROTTLE_MAX_MS:
        logger.warning("the broker asks to wait for %d ms: %d ms are waited, the longest allowed", asked_ms, THROTTLE_MAX_MS)
    return min(max(0, asked_ms), THROTTLE_MAX_MS)


def timestamp_or_none(timestamp_ms: int) -> int:
    """A time in ms since 1970, or -1 for one that is none."""
    return timestamp_ms if 0 <= timestamp_ms <= TIMESTAMP_MAX_MS else -1


def checked_topic(what: str, name: str, topic_id: bytes) -> None:
    """Raises UnknownServerError for what cannot be a topic's name or id."""
    problem = topic_name_problem(name, internal=True)
    if problem is not None:
        raise senseless(what, f"a topic named '{plain_text(name, _VALUE_MAX_CHARACTERS)}': {problem}")
    if len(topic_id) != _TOPIC_ID_BYTES:
        raise senseless(what, f"topic '{name}' has an id of {len(topic_id)} bytes, it must have {_TOPIC_ID_BYTES}")


def checked_address(what: str, host: str, port: int) -> None:
    """Raises UnknownServerError for what a client cannot connect to, or should not."""
    if not _HOST.fullmatch(host) or not 0 < port <= _PORT_MAX:
        raise senseless(what, f"a node at '{plain_text(host, _VALUE_MAX_CHARACTERS)}', port {port}")


def checked_offset(what: str, offset: int) -> int:
    """An offset, or -1. Raises UnknownServerError."""
    if offset < -1:
        raise senseless(what, f"offset {offset}")
    return offset


def checked_identity(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    """Raises UnknownServerError for what no batch can carry."""
    if producer_id < 0 or not 0 <= epoch <= _EPOCH_MAX:
        raise senseless("InitProducerId", f"producer_id {producer_id}, producer_epoch {epoch}")
    return ProducerIdAndEpoch(producer_id, epoch)


def checked_count(what: str, results: Sequence[T], asked: int) -> Sequence[T]:
    """As many results as there were questions. Raises UnknownServerError."""
    if len(results) != asked:
        raise senseless(what, f"{len(results)} results, {asked} were asked for")
    return results
