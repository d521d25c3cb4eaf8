"""Goal: a group's consumer begins at the committed offset, and commits only processed records, never one that the application may
still be working on. Method: a broker in memory that keeps group offsets, and a clock that the test moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from brokerd import Consumer, TopicPartition
from brokerd.arguments import OffsetAndMetadata
from brokerd.client.fetching import EpochStart
from brokerd.consumer.committing import RENEW_MS
from brokerd.errors import (
    ConfigError,
    ConsumerClosedError,
    ConsumerStateError,
    GroupAuthorizationFailedError,
    NoOffsetForPartitionError,
    NotReadyError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    WireError,
)
from brokerd.ids import TopicIdPartition
from brokerd.producer.transaction import named_offsets
from tests.support.clock import ManualClock
from tests.support.consumers import LONG_MS, T0, T1, committed, fill, filled, offsets, put_marker, read, settings
from tests.support.fake_broker import RENEWAL, FakeBroker
from tests.support.logged import messages_of
from tests.support.wait import DEADLINE_S, wait_until

INTERVAL_MS = 5_000


def group_consumer(broker: FakeBroker, clock: ManualClock | None = None, **given: object) -> Consumer:
    return Consumer(settings(broker, **{"group_id": "g", **given}), clock=clock)


def await_background_commit(consumer: Consumer) -> None:
    """Waits until the consumer, too, has the response to its commit."""
    under_way = consumer._committing._under_way
    assert under_way is not None
    wait_until(lambda: under_way.has_ended)


def await_renewal(consumer: Consumer, broker: FakeBroker, count: int) -> None:
    """Waits until the group was renewed so often, and the consumer, too, has the response: only then the next one may begin."""
    wait_until(lambda: broker.renewed == ["g"] * count)
    renewing = consumer._committing._renewing
    assert renewing is not None
    wait_until(lambda: renewing.has_ended)


# --- where reading begins


def test_partition_begins_at_the_committed_offset(broker: FakeBroker) -> None:
    first, second = broker.create("t", 2)
    fill(first, [10])
    fill(second, [10])
    with group_consumer(broker) as consumer:
        consumer.commit({T0: 4})
    with group_consumer(broker, auto_offset_reset="latest") as consumer:
        consumer.assign([T0, T1])
        assert (consumer.position(T0), consumer.position(T1)) == (4, 10)
        assert offsets(read(consumer, 6)) == list(range(4, 10))


def test_without_a_committed_offset_none_is_an_error_that_names_the_group(broker: FakeBroker) -> None:
    broker.create("t")
    with group_consumer(broker, auto_offset_reset="none") as consumer:
        consumer.assign([T0])
        with pytest.raises(NoOffsetForPartitionError, match="group 'g' has committed none"):
            consumer.poll(LONG_MS)
        consumer.commit({T0: 0})
        assert consumer.poll(1) == []


def test_committed_offset_that_is_gone_obeys_auto_offset_reset(broker: FakeBroker) -> None:
    partition = filled(broker, [10, 10])
    with group_consumer(broker) as consumer:
        consumer.commit({T0: 4})
        partition.log_start_offset = 10
        consumer.assign([T0])
        assert offsets(read(consumer, 10)) == list(range(10, 20))


def test_a_consumer_that_only_seeks_reads_whosever_the_group_is(broker: FakeBroker) -> None:
    """The group's offset is requested only for a possible transaction: if the broker refuses it, only the transaction fails."""
    filled(broker, [5])
    broker.errors["FetchGroupOffsets"] = [GroupAuthorizationFailedError("not yours")]
    with group_consumer(broker, enable_auto_commit=False) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 2)
        assert offsets(read(consumer, 3)) == [2, 3, 4]
        for _ in range(2):
            with pytest.raises(GroupAuthorizationFailedError, match="not yours"):
                consumer.transaction_input({T0: 0})
        consumer.assign([])
        consumer.assign([T0])
        consumer.seek(T0, 4)
        assert offsets(read(consumer, 1)) == [4]
        assert consumer.transaction_input({T0: 0})[1][T0][1] == -1


def test_a_partition_that_begins_at_the_group_s_offset_needs_it(broker: FakeBroker) -> None:
    """Even beside a partition with a position of its own. To begin elsewhere would skip records."""
    for partition in broker.create("t", 2):
        fill(partition, [5])
    broker.errors["FetchGroupOffsets"] = [GroupAuthorizationFailedError("not yours")]
    with group_consumer(broker, enable_auto_commit=False) as consumer:
        consumer.assign([T0, T1])
        consumer.seek(T0, 2)
        with pytest.raises(GroupAuthorizationFailedError, match="not yours"):
            consumer.poll(LONG_MS)


def test_seek_goes_before_the_committed_offset(broker: FakeBroker) -> None:
    filled(broker, [10])
    with group_consumer(broker) as consumer:
        consumer.commit({T0: 4})
        consumer.assign([T0])
        consumer.seek(T0, 7)
        assert offsets(read(consumer, 3)) == [7, 8, 9]


# --- commit


def test_commit_keeps_the_positions_of_what_was_handed_over(broker: FakeBroker) -> None:
    filled(broker, [10])
    with group_consumer(broker, enable_auto_commit=False) as consumer:
        consumer.assign([T0])
        assert len(consumer.poll(LONG_MS, 3)) == 3
        consumer.commit()
        assert committed(broker) == 3
        assert consumer.committed([T0, T1][:1]) == {T0: OffsetAndMetadata(3)}
        next(consumer)
        consumer.commit()
        assert committed(broker) == 4
        consumer.poll(LONG_MS)
    assert committed(broker) == 4, "nothing is committed by itself"


def test_commit_of_given_offsets(broker: FakeBroker) -> None:
    for partition in broker.create("t", 2):
        fill(partition, [10])
    with group_consumer(broker, enable_auto_commit=False) as consumer:
        consumer.commit({T0: OffsetAndMetadata(3, "where I was"), T1: 9})
        assert consumer.committed([T0, T1]) == {T0: OffsetAndMetadata(3, "where I was"), T1: OffsetAndMetadata(9)}
        consumer.commit({T1: 2})
        assert consumer.committed(T1) == {T1: OffsetAndMetadata(2)}
        consumer.commit({})
        consumer.commit()
        assert len(broker.commits) == 2


def test_committed_is_none_where_nothing_was(broker: FakeBroker) -> None:
    broker.create("t")
    with group_consumer(broker) as consumer:
        assert consumer.committed([T0]) == {T0: None}
        assert consumer.committed([]) == {}


def test_refused_offset_is_told_and_the_others_are_committed(broker: FakeBroker) -> None:
    for partition in broker.create("t", 2):
        fill(partition, [10])
    with group_consumer(broker) as consumer:
        with pytest.raises(OffsetOutOfRangeError, match=r"group 'g': the offset of t-0 is not committed: offset 99 is beyond 10"):
            consumer.commit({T0: 99, T1: 5})
        assert committed(broker, 1) == 5
        with pytest.raises(UnknownTopicOrPartitionError):
            consumer.commit({TopicPartition("u", 0): 1})


def test_without_a_group_nothing_is_committed(broker: FakeBroker) -> None:
    filled(broker, [3])
    with Consumer(settings(broker, auto_commit_interval_ms=0)) as consumer:
        consumer.assign([T0])
        read(consumer, 3)
        for call in (consumer.commit, lambda: consumer.committed([T0])):
            with pytest.raises(ConsumerStateError, match=r"needs a group: set group\.id"):
                call()
    assert broker.commits == []


def test_group_of_another_principal_is_told(broker: FakeBroker) -> None:
    broker.create("t")
    broker.errors["FetchGroupOffsets"] = [GroupAuthorizationFailedError("it is etl's")]
    broker.errors["CommitGroupOffsets"] = [GroupAuthorizationFailedError("it is etl's")]
    with group_consumer(broker) as consumer:
        consumer.assign([T0])
        with pytest.raises(GroupAuthorizationFailedError, match="it is etl's"):
            consumer.poll(LONG_MS)
        with pytest.raises(GroupAuthorizationFailedError, match="it is etl's"):
            consumer.commit({T0: 0})


@pytest.mark.parametrize("group_id", ["g" * 250, "a\x00b"])
def test_group_ids_are_checked(group_id: str) -> None:
    with pytest.raises(ConfigError, match=r"group\.id .*(must have at most 249 characters that can be printed|text without NUL)"):
        Consumer(group_id=group_id)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({T0: -1}, ValueError),
        ({T0: "1"}, TypeError),
        ({"t": 1}, TypeError),
        ({T0: OffsetAndMetadata(-2)}, ValueError),
        ({T0: OffsetAndMetadata(1, cast("str", b"x"))}, TypeError),
        ({T0: OffsetAndMetadata(1, "\ud800")}, ValueError),
        ({T0: OffsetAndMetadata(1, "", 2**31)}, ValueError),
        ({T0: OffsetAndMetadata(1, "", -2)}, ValueError),
        ([T0], TypeError),
        (T0, TypeError),
    ],
)
def test_offsets_are_checked(broker: FakeBroker, given: Any, error: type[Exception]) -> None:
    """Before any request, both in `commit` and for a transaction's offsets."""
    with group_consumer(broker) as consumer, pytest.raises(error, match=r"offset|metadata|epoch|partition"):
        consumer.commit(given)
    with pytest.raises(error, match=r"offset|metadata|epoch|partition"):
        named_offsets(given, "g", {T0: None})
    assert broker.calls["Metadata"] == 0


def test_no_metadata_and_no_epoch_may_be_none_as_in_kafkas_clients(broker: FakeBroker) -> None:
    filled(broker, [2])
    with group_consumer(broker) as consumer:
        consumer.commit({T0: OffsetAndMetadata(1, cast("str", None), cast("int", None))})
        assert consumer.committed(T0) == {T0: OffsetAndMetadata(1)}


# --- automatic commits


def test_auto_commit_comes_with_the_polls_of_an_interval(broker: FakeBroker) -> None:
    clock = ManualClock()
    filled(broker, [10])
    with group_consumer(broker, clock) as consumer:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 3)
        consumer.poll(LONG_MS, 3)
        assert broker.commits == []
        clock.advance(INTERVAL_MS)
        consumer.poll(LONG_MS, 1)
        wait_until(lambda: committed(broker) == 6)
        clock.advance(INTERVAL_MS - 1)
        consumer.poll(LONG_MS, 1)
        assert len(broker.commits) == 1


def test_auto_commit_of_an_iteration_ends_before_the_record_in_hand(broker: FakeBroker) -> None:
    filled(broker, [10])
    with contextlib.suppress(LookupError), group_consumer(broker, auto_commit_interval_ms=0) as consumer:
        consumer.assign([T0])
        for record in consumer:
            if record.offset == 5:
                raise LookupError
    assert committed(broker) == 5


def test_auto_commit_commits_where_a_partition_begins(broker: FakeBroker) -> None:
    """Otherwise a consumer that begins at the latest offset, and restarts before it has read a record, skips records."""
    partition = filled(broker, [10])
    with group_consumer(broker, auto_offset_reset="latest") as consumer:
        consumer.assign([T0])
        assert consumer.poll(1) == []
        assert consumer.position(T0) == 10
    fill(partition, [2])
    with group_consumer(broker, auto_offset_reset="latest") as consumer:
        consumer.assign([T0])
        assert offsets(read(consumer, 2)) == [10, 11]


def _leave(consumer: Consumer) -> None:
    with consumer:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 3)
        consumer.poll(LONG_MS, 3)


def _leave_by_an_exception(consumer: Consumer) -> None:
    with contextlib.suppress(LookupError), consumer:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 3)
        consumer.poll(LONG_MS, 3)
        raise LookupError


def _close(consumer: Consumer) -> None:
    consumer.assign([T0])
    consumer.poll(LONG_MS, 3)
    consumer.poll(LONG_MS, 3)
    consumer.close()
    consumer.close()


def _commit_and_close(consumer: Consumer) -> None:
    consumer.assign([T0])
    consumer.poll(LONG_MS, 3)
    consumer.commit()
    consumer.close()


def _commit_and_leave_by_an_exception(consumer: Consumer) -> None:
    with contextlib.suppress(LookupError), consumer:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 3)
        consumer.commit({T0: 2})
        raise LookupError


def _commit_and_give_up(consumer: Consumer) -> None:
    with consumer:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 3)
        consumer.commit({T0: 2})
        consumer.assign([])


@pytest.mark.parametrize(("end", "offset"), [(_leave, 6), (_leave_by_an_exception, 3), (_close, 3)])
def test_the_end_commits_what_is_processed(broker: FakeBroker, end: Callable[[Consumer], None], offset: int) -> None:
    filled(broker, [10])
    end(group_consumer(broker))
    assert committed(broker) == offset


@pytest.mark.parametrize(
    ("end", "offset"), [(_commit_and_close, 3), (_commit_and_leave_by_an_exception, 2), (_commit_and_give_up, 2)]
)
def test_the_end_leaves_what_was_committed(broker: FakeBroker, end: Callable[[Consumer], None], offset: int) -> None:
    filled(broker, [10])
    end(group_consumer(broker))
    assert committed(broker) == offset


@pytest.mark.parametrize("offset", [0, 3])
@pytest.mark.parametrize("polls", [0, 2])
def test_what_was_committed_stands_as_long_as_no_record_comes(broker: FakeBroker, offset: int, polls: int) -> None:
    """As in a program that sets the group's offset, which differs from the position, and ends."""
    filled(broker, [4])
    with group_consumer(broker) as consumer:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 4)
    assert committed(broker) == 4
    with group_consumer(broker, auto_commit_interval_ms=1) as consumer:
        consumer.assign([T0])
        assert consumer.position(T0) == 4
        consumer.commit({T0: offset})
        for _ in range(polls):
            assert consumer.poll(20) == []
    assert committed(broker) == offset


def test_what_was_committed_before_the_position_was_known_is_passed_too(broker: FakeBroker) -> None:
    filled(broker, [10])
    with group_consumer(broker) as consumer:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 3)
        consumer.seek_to_beginning()
        consumer.commit({T0: 7})
        consumer.poll(LONG_MS, 4)
    assert committed(broker) == 4


def test_what_was_committed_is_passed_once_more_is_processed(broker: FakeBroker) -> None:
    filled(broker, [10])
    with group_consumer(broker) as consumer:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 3)
        consumer.commit({T0: 1})
        consumer.poll(LONG_MS, 3)
    assert committed(broker) == 6


def test_partition_that_is_given_up_is_committed(broker: FakeBroker) -> None:
    for partition in broker.create("t", 2):
        fill(partition, [10])
    with group_consumer(broker) as consumer:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 3)
        consumer.poll(LONG_MS, 1)
        consumer.assign([T1])
        consumer.poll(LONG_MS, 1)
        wait_until(lambda: committed(broker) == 3)


def test_partition_that_is_given_up_is_committed_at_once_and_never_later(broker: FakeBroker) -> None:
    """Even if nothing is assigned then, so that `poll` raises. A later commit would undo those of the partition's next reader."""
    filled(broker, [10])
    with group_consumer(broker) as first, group_consumer(broker) as second:
        first.assign([T0])
        first.poll(LONG_MS, 3)
        first.poll(LONG_MS, 1)
        first.assign([])
        wait_until(lambda: committed(broker) == 3)
        second.assign([T0])
        second.poll(LONG_MS, 4)
        second.commit()
    assert committed(broker) == 7


def test_what_is_given_up_while_a_commit_is_in_flight_is_committed_after_it(broker: FakeBroker) -> None:
    clock = ManualClock()
    filled(broker, [10])
    broker.errors["CommitGroupOffsets"] = [NotReadyError("starting")] * 100_000
    with group_consumer(broker, clock) as consumer:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 3)
        clock.advance(INTERVAL_MS)
        consumer.poll(LONG_MS, 3)
        under_way = consumer._committing._under_way
        assert under_way is not None
        assert not under_way.has_ended
        consumer.poll(LONG_MS, 1)
        consumer.assign([])
        broker.errors["CommitGroupOffsets"] = []
        wait_until(lambda: committed(broker) == 6)
    assert broker.commits == [{0: 3}, {0: 6}]


def test_a_refusal_is_not_of_what_was_given_up_and_committed_after_it(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    (partition,) = broker.create("t")
    fill(partition, [10])
    with group_consumer(broker) as consumer:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 3)
        consumer.poll(LONG_MS, 1)
        id_tp = partition.tp

        async def refused() -> dict[TopicIdPartition, WireError]:
            await may_end.wait()
            return {id_tp: OffsetOutOfRangeError("beyond the log")}

        may_end = asyncio.Event()
        committing = consumer._committing
        committing._under_way = committing._client.loop_thread.submit(refused())
        consumer.assign([])
        committing._client.loop_thread.call_soon(may_end.set)
        await_background_commit(consumer)
        assert committing.pending() == {}
    assert committed(broker) == 3
    assert "is not committed" not in caplog.text


def test_commit_of_what_is_given_up_is_not_repeated_after_it_has_failed(broker: FakeBroker) -> None:
    """By then, another consumer may have read further."""
    filled(broker, [10])
    broker.errors["CommitGroupOffsets"] = [GroupAuthorizationFailedError("it is etl's")]
    with group_consumer(broker) as consumer:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 3)
        consumer.poll(LONG_MS, 1)
        consumer.assign([])
        await_background_commit(consumer)
    assert broker.commits == []


@pytest.mark.parametrize("was_committed", [True, False])
@pytest.mark.parametrize("offset", [1, 8])
def test_partition_given_up_and_assigned_again_begins_where_its_group_is_by_then(
    broker: FakeBroker, offset: int, was_committed: bool
) -> None:
    filled(broker, [10])
    with group_consumer(broker) as consumer, group_consumer(broker, enable_auto_commit=False) as other:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 3)
        if was_committed:
            consumer.commit()
        consumer.poll(LONG_MS, 1)
        consumer.assign([])
        wait_until(lambda: committed(broker) == 3)
        if not was_committed:
            await_background_commit(consumer)
        other.commit({T0: offset})
        consumer.assign([T0])
        assert consumer.position(T0) == offset


def test_partition_given_up_and_assigned_again_begins_where_it_was_given_up(broker: FakeBroker) -> None:
    """Even before that position is committed: `latest` would skip records."""
    filled(broker, [10])
    with group_consumer(broker, auto_offset_reset="latest") as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 0)
        consumer.poll(LONG_MS, 3)
        consumer.poll(LONG_MS, 1)
        broker.errors["CommitGroupOffsets"] = [NotReadyError("starting")] * 20
        consumer.assign([])
        consumer.assign([T0])
        assert consumer.position(T0) == 3
        assert offsets(read(consumer, 7)) == list(range(3, 10))


def test_auto_commit_comes_while_a_call_waits_for_records(broker: FakeBroker) -> None:
    """An iteration may wait for hours for its next record: the last one is committed meanwhile."""
    filled(broker, [3])
    consumer = group_consumer(broker, auto_commit_interval_ms=200)
    consumer.assign([T0])
    reading = threading.Thread(target=lambda: list(consumer), name="reading")
    reading.start()
    try:
        wait_until(lambda: committed(broker) == 3)
    finally:
        consumer.close()
        reading.join(DEADLINE_S)


@pytest.mark.parametrize("is_automatic", [True, False])
def test_a_group_that_is_read_is_renewed_also_if_there_is_nothing_to_commit(broker: FakeBroker, is_automatic: bool) -> None:
    clock = ManualClock()
    filled(broker, [3])
    with group_consumer(broker, clock, enable_auto_commit=is_automatic) as consumer:
        consumer.assign([T0])
        read(consumer, 3)
        await_renewal(consumer, broker, 1)
        clock.advance(RENEW_MS - 1)
        consumer.poll(0)
        clock.advance(1)
        consumer.poll(0)
        await_renewal(consumer, broker, 2)
    assert broker.commits == ([{0: 3}] if is_automatic else [])


def test_a_commit_that_may_have_been_made_is_not_taken_for_the_one_before(broker: FakeBroker) -> None:
    clock = ManualClock()
    filled(broker, [3])
    with group_consumer(broker, clock) as consumer:
        consumer.assign([T0])
        read(consumer, 3)
        consumer.commit()
        broker.errors["CommitGroupOffsets"] = [GroupAuthorizationFailedError("ann's")]
        with pytest.raises(GroupAuthorizationFailedError):
            consumer.commit({T0: 1})
        consumer.poll(0)
    assert broker.commits == [{0: 3}, {0: 3}]


def test_offset_of_another_history_is_committed_though_its_number_is_the_same(broker: FakeBroker) -> None:
    """Otherwise the group would keep a position in a history that no log has any more."""
    clock = ManualClock()
    filled(broker, [10])
    with group_consumer(broker, clock) as consumer:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 10)
        for leader_epoch_id in (7, 8):
            consumer._assignment.partitions[T0].epochs = [EpochStart(0, leader_epoch_id)]
            clock.advance(INTERVAL_MS)
            consumer.poll(0)
            await_background_commit(consumer)
        consumer.seek(T0, 10)  # a position of unknown history
        clock.advance(INTERVAL_MS)
        consumer.poll(0)
    assert broker.commits == [{0: 10}, {0: 10}]


def test_what_a_group_has_lost_is_committed_again(broker: FakeBroker) -> None:
    """The offset was deleted, or has expired, while there was nothing to read."""
    clock = ManualClock()
    for partition in broker.create("t", 2):
        fill(partition, [3])
    with group_consumer(broker, clock) as consumer:
        consumer.assign([T0, T1])
        read(consumer, 6)
        clock.advance(INTERVAL_MS)
        consumer.poll(0)
        wait_until(lambda: broker.commits == [{0: 3, 1: 3}])
        await_background_commit(consumer)
        await_renewal(consumer, broker, 1)
        del broker.groups["g"][broker.topics["t"][1].tp]
        clock.advance(RENEW_MS)
        consumer.poll(0)
        wait_until(lambda: len(consumer._committing._done) == 1)
        clock.advance(INTERVAL_MS)
        consumer.poll(0)
        wait_until(lambda: broker.commits[1:] == [{1: 3}])


def test_a_call_that_waits_renews_the_group(broker: FakeBroker) -> None:
    broker.create("t")
    clock = ManualClock()
    with group_consumer(broker, clock, enable_auto_commit=False) as consumer:
        committing = consumer._committing
        assert committing.wait_ms(None) == 100, "the first time is at once"
        committing.auto()
        assert committing.wait_ms(None) == RENEW_MS
        assert committing.wait_ms(7) == 7
        wait_until(lambda: broker.renewed == ["g"])


def test_a_renewal_that_fails_is_said_and_reading_goes_on(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    filled(broker, [3])
    broker.errors[RENEWAL] = [GroupAuthorizationFailedError("ann's")]
    with group_consumer(broker, enable_auto_commit=False) as consumer:
        consumer.assign([T0])
        assert offsets(read(consumer, 3)) == [0, 1, 2]
        wait_until(lambda: "group 'g' is not renewed" in caplog.text)


def test_markers_that_arrive_during_a_long_wait_are_committed(broker: FakeBroker) -> None:
    """Otherwise retention may delete them, and a restart finds the committed offset out of range."""
    partition = filled(broker, [3])
    consumer = group_consumer(broker, auto_commit_interval_ms=0)
    with consumer:
        consumer.assign([T0])
        reading = threading.Thread(target=lambda: list(consumer), name="reading")
        reading.start()
        wait_until(lambda: committed(broker) == 3)
        put_marker(partition)
        wait_until(lambda: committed(broker) == 4)
    reading.join(DEADLINE_S)


@pytest.mark.parametrize("timeout_ms", [1, None])
def test_markers_do_not_count_records_as_processed_that_a_commit_left_out(broker: FakeBroker, timeout_ms: int | None) -> None:
    def go_on() -> None:
        with contextlib.suppress(ConsumerClosedError):
            while True:
                consumer.poll(timeout_ms)
                polls.append(timeout_ms)

    polls: list[int | None] = []
    partition = filled(broker, [10])
    reading = threading.Thread(target=go_on, name="reading")
    with group_consumer(broker, auto_commit_interval_ms=0) as consumer:
        consumer.assign([T0])
        assert len(read(consumer, 10)) == 10
        consumer.commit({T0: 3})
        put_marker(partition)
        reading.start()
        wait_until(lambda: consumer._assignment.of(T0).position == 11)
        seen = len(polls)
        wait_until(lambda: timeout_ms is None or len(polls) >= seen + 2)
        consumer.close()
    reading.join(DEADLINE_S)
    assert committed(broker) == 3


def test_markers_after_the_last_record_are_committed_once_it_is(broker: FakeBroker) -> None:
    put_marker(filled(broker, [10]))
    with group_consumer(broker) as consumer:
        consumer.assign([T0])
        assert len(read(consumer, 10)) == 10
        wait_until(lambda: consumer.poll(1) == [] and consumer.position(T0) == 11)
        consumer.commit({T0: 10})
        consumer.close()
    assert committed(broker) == 11


@pytest.mark.parametrize("is_automatic", [True, False])
def test_what_is_known_of_commits_does_not_grow_with_partitions_of_the_past(broker: FakeBroker, is_automatic: bool) -> None:
    clock = ManualClock()
    with group_consumer(broker, clock, enable_auto_commit=is_automatic) as consumer:
        for _ in range(10):
            (partition,) = broker.create("t")  # a new topic of the same name
            fill(partition, [3])
            consumer.assign([])
            consumer.assign([T0])
            read(consumer, 3)
            consumer.poll(0)
            clock.advance(INTERVAL_MS)
            consumer.poll(0)
            consumer.commit({T0: 2})
            assert consumer.committed(T0) == {T0: OffsetAndMetadata(2)}
        committing = consumer._committing
        assert len(committing._wanted) <= 2
        assert len(committing._done) <= 2


def test_auto_commit_that_fails_is_said_and_made_up_for(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    filled(broker, [10])
    broker.errors["CommitGroupOffsets"] = [GroupAuthorizationFailedError("it is etl's")]
    with group_consumer(broker, clock) as consumer, caplog.at_level(logging.WARNING):
        consumer.assign([T0])
        consumer.poll(LONG_MS, 3)
        clock.advance(INTERVAL_MS)
        consumer.poll(LONG_MS, 3)
        wait_until(lambda: not broker.errors["CommitGroupOffsets"])
        while committed(broker) is None:
            clock.advance(INTERVAL_MS)
            consumer.poll(0, 1)
        assert (committed(broker) or 0) >= 3
    assert ["offsets are not committed: it is etl's" in text for text in messages_of(caplog, "brokerd.consumer")] == [True]


def test_commit_waits_for_the_one_under_way_so_that_the_newer_one_counts(broker: FakeBroker) -> None:
    filled(broker, [10])
    broker.errors["CommitGroupOffsets"] = [NotReadyError("starting")] * 3
    with group_consumer(broker, auto_commit_interval_ms=LONG_MS) as consumer:
        consumer.assign([T0])
        consumer.poll(LONG_MS, 3)
        consumer._committing._next_ms = 0
        consumer.poll(LONG_MS, 3)
        consumer.commit()
        assert broker.commits == [{0: 3}, {0: 6}]


def test_close_without_a_broker_ends_in_time_and_says_what_is_not_committed(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    filled(broker, [3])
    broker.errors["CommitGroupOffsets"] = [NotReadyError("starting")] * 100_000
    consumer = group_consumer(broker)
    consumer.assign([T0])
    read(consumer, 3)
    consumer.poll(0)
    with caplog.at_level(logging.WARNING):
        consumer.close(timeout_ms=20)
    assert any(
        "the broker has not answered in 20 ms: records since the last commit will come again" in text for text in caplog.messages
    )
