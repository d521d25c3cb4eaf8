"""Checks a broker's responses before use. A broken or hostile broker causes an error that names the problem, never a traceback, a
wait of weeks or exhausted memory. brokerd/wire/texts.py makes texts safe to print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

from google.protobuf.message import Message

from brokerd.config.settings import INT64_MAX
from brokerd.errors import UnknownServerError, WireError
from brokerd.ids import PRODUCER_EPOCH_MAX, ProducerIdAndEpoch, TopicIdPartition
from brokerd.wire.errors import from_proto
from brokerd.wire.texts import plain_text
from brokerd.wire.v1 import error_pb2

T = TypeVar("T")
M = TypeVar("M", bound=Message)
P = TypeVar("P", str, TopicIdPartition)
TIMESTAMP_MAX_MS = INT64_MAX // 1_000  # records carry timestamps in int64 microseconds
_TEXT_MAX_CHARACTERS = 4_096  # the longest text that a broker sends: the metadata of a committed offset


def senseless(what: str, problem: str) -> UnknownServerError:
    """The error for a response that no correct broker sends."""
    return UnknownServerError(f"the broker's response to {what} is invalid: {problem}")


def timestamp_or_none(timestamp_ms: int) -> int:
    """A time in ms since 1970, or -1 if the value is not one."""
    return timestamp_ms if 0 <= timestamp_ms <= TIMESTAMP_MAX_MS else -1


def checked_offset(what: str, offset: int) -> int:
    """An offset, or -1. Raises UnknownServerError."""
    if offset < -1:
        raise senseless(what, f"offset {offset}")
    return offset


def checked_identity(producer_id: int, epoch: int) -> ProducerIdAndEpoch:
    """Raises UnknownServerError for values that a batch cannot carry."""
    if producer_id < 0 or not 0 <= epoch <= PRODUCER_EPOCH_MAX:
        raise senseless("InitProducerId", f"producer_id {producer_id}, producer_epoch {epoch}")
    return ProducerIdAndEpoch(producer_id, epoch)


def checked_count(what: str, results: Sequence[T], asked: int) -> Sequence[T]:
    """Checks the number of results against the number requested. Raises UnknownServerError."""
    if len(results) != asked:
        raise senseless(what, f"{len(results)} results, {asked} were requested")
    return results


def page_after(what: str, after: P | None, last: P) -> P:
    """Where the next page begins: after this page's `last` entry. Raises UnknownServerError unless this page is after `after`:
    paging would never end."""
    if after is not None and last <= after:
        raise senseless(what, "a page that comes after itself")
    return last


def error_in(result: Message) -> WireError | None:
    """The error of a message, if any."""
    return from_proto(cast("error_pb2.Error", result.error)) if result.HasField("error") else None  # type: ignore[attr-defined]


def made_plain(message: M) -> M:
    """Makes the message's texts safe to print, in place."""
    for field, value in message.ListFields():
        if isinstance(value, str):
            setattr(message, field.name, plain_text(value, _TEXT_MAX_CHARACTERS))
        elif field.type == field.TYPE_STRING:
            value[:] = [plain_text(one, _TEXT_MAX_CHARACTERS) for one in value]
        elif field.message_type is not None:
            for one in (value,) if isinstance(value, Message) else value:
                made_plain(one)
    return message
