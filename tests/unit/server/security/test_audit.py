"""The audit trail: a limited number of lines per caller and a count of the rest, one line per entry, whatever was sent."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.errors import Fate, NotReadyError, StorageError, UnknownTopicOrPartitionError
from brokerd.server.handlers import topics as topic_handlers
from brokerd.server.security.audit import LINES_MAX, WINDOW_MS, Audit
from brokerd.server.security.topic_authorizer import ANYBODY, TopicAuthorizer
from brokerd.sharing import CALLER, Caller, Turns
from brokerd.wire.v1.topics_pb2 import AlterPartitionReassignmentsRequest, DeleteRecordsRequest
from tests.support.clock import ManualClock
from tests.support.logged import messages_of


def test_each_caller_has_lines_of_its_own_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="brokerd.audit")
    clock = ManualClock()
    audit = Audit(clock)
    for number in range(LINES_MAX + 7):
        audit.refused("loud", f"number {number}")
    CALLER.set(Caller("quiet", "ipv4:192.0.2.1:5"))
    with audit.change("created topic 't'"):
        pass
    assert len(messages_of(caplog, "brokerd.audit")) == LINES_MAX + 1
    assert messages_of(caplog, "brokerd.audit")[-1] == "quiet created topic 't' (from ipv4:192.0.2.1:5)"
    clock.advance(WINDOW_MS)
    audit.refused("loud", "again")
    assert messages_of(caplog, "brokerd.audit")[-2:] == ["loud refused: 7 more requests", "loud refused: again"]


def test_what_is_still_counted_is_written_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(ManualClock())
    for _ in range(LINES_MAX + 2):
        audit.refused("loud", "no")
    audit.end()
    assert messages_of(caplog, "brokerd.audit")[-1] == "loud refused: 2 more requests"
    audit.end()
    assert len(messages_of(caplog, "brokerd.audit")) == LINES_MAX + 1


def test_no_more_callers_are_kept_than_have_room(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(ManualClock())
    for _ in range(LINES_MAX + 1):
        audit.refused("first", "no")
    for number in range(3_000):
        audit.refused(f"ipv4:192.0.2.{number}", "no")
    assert len(audit._windows) == 1_000
    assert "first refused: 1 more requests" in messages_of(caplog, "brokerd.audit")


def test_control_characters_are_escaped_and_long_texts_cut(caplog: pytest.LogCaptureFixture) -> None:
    Audit(ManualClock()).refused("a\nb", "topic '\x1b[2J\r\n2026-01-01 forged'" + "x" * 10_000)
    (line,) = messages_of(caplog, "brokerd.audit")
    assert "\n" not in line
    assert "\x1b" not in line
    assert "\\x1b[2J\\r\\n" in line
    assert len(line) < 1_200


def test_a_change_has_its_line_however_much_was_refused_or_changed_before(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="brokerd.audit")
    audit = Audit(ManualClock())
    for _ in range(LINES_MAX + 5):
        audit.refused("etl", "principal 'etl' may not administer topic 'orders'")
    changed = [f"deleted topic 't{number}'" for number in range(3 * LINES_MAX)]
    CALLER.set(Caller("etl", "ipv4:192.0.2.1:5"))
    for what in changed:
        with audit.change(what):
            pass
    audit.refused("etl", "again")
    audit.end()
    assert messages_of(caplog, "brokerd.audit")[LINES_MAX:-1] == [f"etl {what} (from ipv4:192.0.2.1:5)" for what in changed]
    assert messages_of(caplog, "brokerd.audit")[-1] == "etl refused: 6 more requests", "changes take no refusal's place"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (StorageError("the answer is lost", fate=Fate.UNKNOWN), "perhaps deleted topic 't': the answer is lost"),
        (ZeroDivisionError("a mistake"), "perhaps deleted topic 't': a mistake"),
        (UnknownTopicOrPartitionError("there is no topic 't'"), None),
        (NotReadyError("try again", fate=Fate.NOT_APPENDED), None),
    ],
)
def test_a_change_that_may_have_been_made_has_its_line(
    error: Exception, line: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="brokerd.audit")
    CALLER.set(Caller("etl", "ipv4:192.0.2.1:5"))
    with pytest.raises(type(error)), Audit(ManualClock()).change("deleted topic 't'"):
        raise error
    assert messages_of(caplog, "brokerd.audit") == ([f"etl {line} (from ipv4:192.0.2.1:5)"] if line else [])


def test_a_change_is_described_once_it_is_made_and_none_has_no_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="brokerd.audit")
    CALLER.set(Caller("etl", "ipv4:192.0.2.1:5"))
    for what in ("deleted 3 offsets of group 'g'", ""):
        with Audit(ManualClock()).change("deleted offsets of group 'g'") as change:
            change.what = what
    assert messages_of(caplog, "brokerd.audit") == ["etl deleted 3 offsets of group 'g' (from ipv4:192.0.2.1:5)"]


@pytest.mark.parametrize(("before_offset", "below"), [(7, "offset 7"), (-1, "the high watermark")])
async def test_records_that_may_have_been_deleted_have_their_line(
    before_offset: int, below: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The last step failed: after a restart, the log start may have moved."""
    caplog.set_level(logging.INFO, logger="brokerd.audit")

    async def fails(_steps: object) -> list[StorageError]:
        return [StorageError("it may have moved", fate=Fate.UNKNOWN)]

    log = SimpleNamespace(name="t-0", ends=SimpleNamespace(log_start_offset=0))
    broker: Any = SimpleNamespace(
        turns=Turns(),
        partitions=SimpleNamespace(leader=lambda _tp: log),
        admin=SimpleNamespace(run=fails),
        retention=SimpleNamespace(delete_records=lambda _starts: None),
        clock=ManualClock(),
        audit=Audit(ManualClock()),
    )
    request = DeleteRecordsRequest()
    request.partitions.add(topic_id=bytes(16), before_offset=before_offset)
    topics: Any = SimpleNamespace()
    (result,) = (await topic_handlers.delete_records(broker, TopicAuthorizer(ANYBODY, topics), request)).results
    assert Fate(result.error.fate) is Fate.UNKNOWN
    (line,) = messages_of(caplog, "brokerd.audit")
    assert f"perhaps deleted records of t-0 below {below}: it may have moved" in line


@pytest.mark.parametrize("is_moved", [True, False])
async def test_a_partition_that_is_moved_has_its_line_and_one_that_is_there_already_has_none(
    is_moved: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="brokerd.audit")

    async def reassign(*_: object, **__: object) -> bool:
        return is_moved

    cluster = SimpleNamespace(topics=SimpleNamespace(reassign=reassign))
    broker: Any = SimpleNamespace(cluster=cluster, audit=Audit(ManualClock()))
    request = AlterPartitionReassignmentsRequest()
    request.partitions.add(name="t", replicas=[2])
    topics: Any = SimpleNamespace()
    await topic_handlers.reassign(broker, TopicAuthorizer(ANYBODY, topics), request)
    assert len(messages_of(caplog, "brokerd.audit")) == is_moved
