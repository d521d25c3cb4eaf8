"""The audit trail: refused requests, and changes of topics, records, groups and transactions, each with its principal, as lines of
the logger `brokerd.audit`.

Every change has its line: each costs its caller an fsync, which limits them. A principal, or an unauthenticated host, gets
LINES_MAX lines about refusals per WINDOW_MS; further ones are counted, and the count is written when the window ends. Text from
callers is shortened and its control characters escaped. Credentials never appear.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from typing import Any

from brokerd.clock import Clock
from brokerd.errors import counted
from brokerd.wire.texts import plain_text

logger = logging.getLogger("brokerd.audit")

LINES_MAX = 20
WINDOW_MS = 10_000
_CALLERS_MAX = 1_000
_CHARACTERS_MAX = 1_000  # more than the longest topic, setting and value together

NameOf = Callable[[bytes], str]  # topic id -> topic name


class _Window:
    """The lines about one caller's refusals since `began_ms`."""

    __slots__ = ("began_ms", "lines", "suppressed")

    def __init__(self, began_ms: int) -> None:
        self.began_ms = began_ms
        self.lines = 0
        self.suppressed = 0


class Audit:
    """The audit trail of one broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: OrderedDict[str, _Window] = OrderedDict()  # oldest first

    def refused(self, who: str, what: str) -> None:
        """Writes or counts a refused request. `who`: a principal, or an unauthenticated caller's address; `what`: the reason."""
        now_ms = self._clock.monotonic_ms()
        while self._windows and now_ms - next(iter(self._windows.values())).began_ms >= WINDOW_MS:
            self._end_oldest()
        window = self._windows.get(who)
        if window is None:
            if len(self._windows) >= _CALLERS_MAX:
                self._end_oldest()
            window = self._windows[who] = _Window(now_ms)
        if window.lines >= LINES_MAX:
            window.suppressed += 1
            return
        window.lines += 1
        _write(logging.WARNING, who, f"refused: {what}")

    def changed(self, who: str, peer: str, what: str) -> None:
        """Writes a change made by a call from `peer`."""
        _write(logging.INFO, who, f"{what} (from {peer})")

    def reloaded(self, what: str) -> None:
        """Writes that certificates and the auth file were reloaded. Not limited: only the operator can cause it."""
        logger.info("read again: %s", plain_text(what, _CHARACTERS_MAX))

    def end(self) -> None:
        """Writes the counts of all windows that have not ended."""
        while self._windows:
            self._end_oldest()

    def _end_oldest(self) -> None:
        who, window = self._windows.popitem(last=False)
        if window.suppressed:
            _write(logging.WARNING, who, f"refused: {window.suppressed} more requests")


def _write(level: int, who: str, what: str) -> None:
    logger.log(level, "%s %s", plain_text(who, _CHARACTERS_MAX), plain_text(what, _CHARACTERS_MAX))


def changes(method: str, request: Any, response: Any, name_of: NameOf) -> Iterator[str]:
    """One sentence for each change by a method in CHANGES; none for a request that only validates."""
    if not getattr(request, "validate_only", False):
        yield from CHANGES[method](request, response, name_of)


def created_topics(response: Any, names: Collection[str]) -> Iterator[str]:
    """One sentence for each topic of `names` in a Metadata response: the request created it by naming it."""
    topics = response.topics if names else ()
    return (f"created topic '{topic.name}'" for topic in topics if topic.name in names and not topic.HasField("error"))


def _created(_request: Any, response: Any, _name_of: NameOf) -> Iterator[str]:
    return (f"created topic '{result.name}'" for result in response.results if not result.HasField("error"))


def _deleted(_request: Any, response: Any, _name_of: NameOf) -> Iterator[str]:
    return (f"deleted topic '{result.name}'" for result in response.results if not result.HasField("error"))


def _grown(request: Any, response: Any, _name_of: NameOf) -> Iterator[str]:
    if not response.result.HasField("error"):
        yield f"gave topic '{request.name}' {request.total_count} partitions"


def _altered(request: Any, response: Any, _name_of: NameOf) -> Iterator[str]:
    if not response.result.HasField("error"):
        yield from (f"altered topic '{request.name}': {name}={value.strip()}" for name, value in sorted(request.set.items()))
        yield from (f"altered topic '{request.name}': {name} unset" for name in sorted(request.unset))


def _records(_request: Any, response: Any, name_of: NameOf) -> Iterator[str]:
    for result in response.results:
        if not result.HasField("error"):
            yield f"deleted records of {name_of(result.topic_id)}-{result.partition} below offset {result.log_start_offset}"


def _aborted(request: Any, response: Any, _name_of: NameOf) -> Iterator[str]:
    if response.aborted_members:
        execution = f" in execution {request.execution_id!a}" if request.execution_id else ""
        yield f"aborted {counted(response.aborted_members, 'member')} of transactional id {request.transactional_id!a}{execution}"


def _forgotten(request: Any, response: Any, _name_of: NameOf) -> Iterator[str]:
    if not response.HasField("error"):
        last = "none" if response.last_version < 0 else f"version {response.last_version}"
        yield f"forgot transactional id {request.transactional_id!a} of principal {response.principal!a}, last committed: {last}"


def _group_deleted(request: Any, response: Any, _name_of: NameOf) -> Iterator[str]:
    if not response.HasField("error") and response.deleted_offsets:
        yield f"deleted {counted(response.deleted_offsets, 'offset')} of group {request.group_id!a}"


CHANGES: dict[str, Callable[[Any, Any, NameOf], Iterator[str]]] = {
    "CreateTopics": _created,
    "DeleteTopics": _deleted,
    "CreatePartitions": _grown,
    "AlterTopicConfigs": _altered,
    "DeleteRecords": _records,
    "DeleteGroup": _group_deleted,
    "AbortTransaction": _aborted,
    "ForgetTransactionalId": _forgotten,
}
