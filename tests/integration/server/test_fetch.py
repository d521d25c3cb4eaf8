"""Fetch over the wire: limits as in Kafka, offsets out of range, long polls and what ends them."""

from __future__ import annotations

import pytest

from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.record.batch import RecordBatch
from brokerd.wire.v1 import fetch_pb2
from tests.support.daemon import RunningDaemon
from tests.support.files import MemoryFiles
from tests.support.gate import Gate
from tests.support.raw_client import LONG_MS, RawClient, values_batch
from tests.support.wait import wait_until

COMMITTED = fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED


def base_offsets(batches: list[RecordBatch]) -> list[int]:
    return [batch.header.base_offset for batch in batches]


def parked(running: RunningDaemon) -> int:
    return len(running.daemon.broker.fetch_purgatory)


def fill(client: RawClient, tp: TopicIdPartition, count: int, *, size: int = 1_000) -> int:
    """Appends batches of one record each; returns the size of one."""
    stream = client.producer()
    batch = values_batch(tp, size=size)
    for _ in range(count):
        stream.produce(tp, batch)
    stream.half_close()
    return int(batch.size)


def test_whole_batches_come_from_the_offset_on(client: RawClient) -> None:
    (tp,) = client.create_topic()
    stream = client.producer()
    for _ in range(3):
        stream.produce(tp, values_batch(tp, 4))
    head, (batches,) = client.fetcher().fetch({tp: 5})
    assert base_offsets(batches) == [4, 8], "the first one holds the offset and begins earlier"
    result = head.results[0]
    assert (result.high_watermark, result.last_stable_offset, result.log_start_offset) == (12, 12, 0)


@pytest.mark.parametrize("cold", [False, True])
def test_batches_that_begin_where_the_reader_ends_are_left_out(client: RawClient, files: MemoryFiles, cold: bool) -> None:
    (tp,) = client.create_topic()
    stream = client.producer()
    for _ in range(4):
        stream.produce(tp, values_batch(tp, 4))
    files.is_cold = cold
    fetcher = client.fetcher()

    def fetched(until_offset: int, offset: int = 5) -> list[int]:
        _, (batches,) = fetcher.fetch({tp: offset}, until_offset=until_offset, max_wait_ms=LONG_MS)
        return base_offsets(batches)

    assert fetched(0) == [4, 8, 12], "no end"
    assert fetched(16) == [4, 8, 12]
    assert fetched(13) == [4, 8, 12]
    assert fetched(12) == [4, 8]
    assert fetched(6) == [4]
    assert fetched(5, offset=8) == [], "at once"


@pytest.mark.parametrize("cold", [False, True])
def test_limits_of_bytes_are_kept_but_the_first_batch_always_comes(client: RawClient, files: MemoryFiles, cold: bool) -> None:
    first, second, third = client.create_topic(partitions=3)
    sizes = {fill(client, tp, 6) for tp in (first, second, third)}
    (size,) = sizes
    files.is_cold = cold
    fetcher = client.fetcher()

    def counts(**limits: int) -> list[int]:
        return [len(batches) for batches in fetcher.fetch({first: 0, second: 0, third: 0}, **limits)[1]]

    assert counts() == [6, 6, 6]
    assert counts(partition_max_bytes=2 * size) == [2, 2, 2]
    assert counts(partition_max_bytes=2 * size + 1) == [2, 2, 2]
    assert counts(max_bytes=8 * size) == [6, 2, 0]
    assert counts(max_bytes=8 * size - 1) == [6, 1, 0]
    assert counts(max_bytes=1) == [1, 0, 0], "one batch, so that the reader makes progress"
    assert counts(max_bytes=0) == [1, 0, 0]
    assert counts(partition_max_bytes=1) == [1, 1, 1], "each partition makes progress while the response has room"
    assert counts(partition_max_bytes=1, max_bytes=2 * size) == [1, 1, 0]
    assert counts(partition_max_bytes=1, max_bytes=size + 1) == [1, 0, 0]


def test_the_first_batch_comes_from_the_first_partition_that_has_one(client: RawClient) -> None:
    empty, filled = client.create_topic(partitions=2)
    fill(client, filled, 2)
    _, batches = client.fetcher().fetch({empty: 0, filled: 0}, max_bytes=1)
    assert [len(one) for one in batches] == [0, 1]


@pytest.mark.parametrize("settings", [{"fetch_max_bytes": 4_096}], indirect=True)
def test_the_brokers_own_limit_holds_too(client: RawClient) -> None:
    (tp,) = client.create_topic()
    size = fill(client, tp, 8)
    _, (batches,) = client.fetcher().fetch({tp: 0})
    assert len(batches) == 4_096 // size


def test_offsets_beyond_either_end_are_out_of_range_and_say_where_the_log_begins(client: RawClient) -> None:
    (tp,) = client.create_topic()
    fill(client, tp, 6)
    assert client.delete_records(tp, 3).log_start_offset == 3
    fetcher = client.fetcher()
    for offset in (0, 2, 7, 2**62):
        head, _ = fetcher.fetch({tp: offset}, max_wait_ms=LONG_MS)
        error = head.results[0].error
        assert ErrorCode(error.code) is ErrorCode.OFFSET_OUT_OF_RANGE
        assert error.log_start_offset == 3
        assert str(offset) in error.message
    head, (batches,) = fetcher.fetch({tp: 3})
    assert base_offsets(batches) == [3, 4, 5]


def test_an_error_of_one_partition_comes_at_once_beside_the_data_of_others(client: RawClient) -> None:
    (tp,) = client.create_topic()
    fill(client, tp, 1)
    unknown, no_partition = TopicIdPartition(b"u" * 16, 0), TopicIdPartition(tp.topic_id, 9)
    head, batches = client.fetcher().fetch({unknown: 0, tp: 0, no_partition: 0}, max_wait_ms=LONG_MS, min_bytes=2**20)
    assert [ErrorCode(result.error.code) for result in head.results] == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert [len(one) for one in batches] == [0, 1, 0]


def test_a_fetch_without_partitions_is_answered_at_once(client: RawClient) -> None:
    head, _ = client.fetcher().fetch({}, max_wait_ms=LONG_MS)
    assert not head.results


def test_a_fetch_waits_max_wait_ms_and_no_less(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    clock = running.daemon.broker.clock
    before_ms = clock.monotonic_ms()
    head, (batches,) = client.fetcher().fetch({tp: 0}, max_wait_ms=120)
    assert clock.monotonic_ms() - before_ms >= 120
    assert not batches
    assert head.results[0].high_watermark == 0
    assert parked(running) == 0


@pytest.mark.parametrize("isolation_level", [0, COMMITTED])
def test_a_parked_fetch_wakes_when_its_data_is_durable_and_not_before(
    running: RunningDaemon, client: RawClient, files: MemoryFiles, isolation_level: int
) -> None:
    (tp,) = client.create_topic()
    fetcher = client.fetcher()
    fetcher.post({tp: 0}, max_wait_ms=LONG_MS, isolation_level=isolation_level)
    wait_until(lambda: parked(running) == 1)
    with Gate(files, "fdatasync", path=tp.directory_name) as gate:
        assert client.producer().produce(tp, values_batch(tp), acks=1).base_offset == 0
        gate.wait_until_reached()
        assert parked(running) == 1, "appended, but not durable"
        head, (batches,) = client.fetcher().fetch({tp: 0}, isolation_level=isolation_level)
        assert (head.results[0].high_watermark, batches) == (0, []), "nor is it read by a fetch that does not wait"
    _, (batches,) = fetcher.answer()
    assert base_offsets(batches) == [0]
    assert parked(running) == 0


def test_a_fetch_between_high_watermark_and_log_end_parks(running: RunningDaemon, client: RawClient, files: MemoryFiles) -> None:
    (tp,) = client.create_topic()
    stream, fetcher = client.producer(), client.fetcher()
    with Gate(files, "fdatasync", path=tp.directory_name) as gate:
        stream.produce(tp, values_batch(tp, 5), acks=1)
        gate.wait_until_reached()
        fetcher.post({tp: 5}, max_wait_ms=LONG_MS)
        wait_until(lambda: parked(running) == 1)
    wait_until(lambda: client.latest(tp) == 5)
    assert parked(running) == 1, "the high watermark reached its offset, but there is nothing above it"
    stream.produce(tp, values_batch(tp), acks=1)
    head, (batches,) = fetcher.answer()
    assert not head.results[0].HasField("error")
    assert base_offsets(batches) == [5]


def test_min_bytes_counts_over_all_partitions(running: RunningDaemon, client: RawClient) -> None:
    first, second, other = client.create_topic(partitions=3)
    size = fill(client, first, 1)
    fetcher = client.fetcher()
    fetcher.post({first: 0, second: 0}, max_wait_ms=LONG_MS, min_bytes=3 * size)
    wait_until(lambda: parked(running) == 1)
    fill(client, second, 1)
    fill(client, other, 3)
    assert parked(running) == 1
    fill(client, first, 1)
    _, batches = fetcher.answer()
    assert [len(one) for one in batches] == [2, 1]


def test_min_bytes_counts_what_lies_above_the_offset_only(running: RunningDaemon, client: RawClient, files: MemoryFiles) -> None:
    """The fetch waits at the log end while bytes below it are not yet durable; those must not count."""
    (tp,) = client.create_topic()
    stream, fetcher = client.producer(), client.fetcher()
    batch = values_batch(tp, size=1_000)
    with Gate(files, "fdatasync", path=tp.directory_name) as gate:
        for _ in range(3):
            stream.produce(tp, batch, acks=1)
        gate.wait_until_reached()
        fetcher.post({tp: 3}, max_wait_ms=LONG_MS, min_bytes=2 * batch.size)
        wait_until(lambda: parked(running) == 1)
    stream.produce(tp, batch)
    assert parked(running) == 1
    stream.produce(tp, batch)
    _, (batches,) = fetcher.answer()
    assert base_offsets(batches) == [3, 4]


def test_a_partition_counts_for_no_more_than_its_own_limit(running: RunningDaemon, client: RawClient) -> None:
    first, second = client.create_topic(partitions=2)
    size = fill(client, first, 5)
    fetcher = client.fetcher()
    limits = {"max_wait_ms": LONG_MS, "min_bytes": 3 * size, "partition_max_bytes": 2 * size}
    fetcher.post({first: 0, second: 0}, **limits)
    wait_until(lambda: parked(running) == 1)
    fill(client, first, 3)
    assert parked(running) == 1, "the first partition counts for two batches, however many it has"
    fill(client, second, 1)
    _, batches = fetcher.answer()
    assert [len(one) for one in batches] == [2, 1]


def test_more_than_max_bytes_is_not_waited_for(client: RawClient) -> None:
    (tp,) = client.create_topic()
    size = fill(client, tp, 3)
    _, (batches,) = client.fetcher().fetch({tp: 0}, max_wait_ms=LONG_MS, min_bytes=100 * size, max_bytes=2 * size)
    assert len(batches) == 2


def test_batches_that_leave_a_gap_below_the_limit_are_not_waited_for(client: RawClient) -> None:
    (tp,) = client.create_topic()
    size = fill(client, tp, 3)
    limit = 2 * size + size // 2
    _, (batches,) = client.fetcher().fetch({tp: 0}, max_wait_ms=LONG_MS, min_bytes=limit, partition_max_bytes=limit)
    assert len(batches) == 2, "the third does not fit: waiting would bring nothing"


def test_the_next_request_completes_what_is_parked_and_answers_stay_in_order(running: RunningDaemon, client: RawClient) -> None:
    first, second = client.create_topic(partitions=2)
    fill(client, second, 1)
    fetcher = client.fetcher()
    fetcher.post({first: 0}, max_wait_ms=LONG_MS)
    wait_until(lambda: parked(running) == 1)
    fetcher.post({second: 0}, max_wait_ms=LONG_MS)
    answers = [fetcher.answer() for _ in range(2)]
    assert [head.correlation_id for head, _ in answers] == [1, 2]
    assert [len(batches[0]) for _, batches in answers] == [0, 1]
    assert parked(running) == 0


def test_a_deleted_topic_completes_what_waits_for_it(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    fetcher = client.fetcher()
    fetcher.post({tp: 0}, max_wait_ms=LONG_MS)
    wait_until(lambda: parked(running) == 1)
    client.delete_topic()
    head, _ = fetcher.answer()
    assert ErrorCode(head.results[0].error.code) is ErrorCode.UNKNOWN_TOPIC_ID
    assert head.results[0].high_watermark == -1


def test_a_log_start_that_passes_a_parked_offset_completes_it(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    fill(client, tp, 2)
    fetcher = client.fetcher()
    fetcher.post({tp: 0}, max_wait_ms=LONG_MS, min_bytes=2**20)
    wait_until(lambda: parked(running) == 1)
    client.delete_records(tp, 2)
    head, _ = fetcher.answer()
    assert ErrorCode(head.results[0].error.code) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_client_that_goes_leaves_nothing_behind(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    fetchers = [client.fetcher() for _ in range(20)]
    for fetcher in fetchers:
        fetcher.post({tp: 0}, max_wait_ms=LONG_MS)
    wait_until(lambda: parked(running) == 20)
    for fetcher in fetchers:
        fetcher.cancel()
    purgatory = running.daemon.broker.fetch_purgatory
    wait_until(lambda: (len(purgatory), purgatory.next_due_ms()) == (0, None))


def test_a_half_closed_stream_still_gets_its_answer(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    fetcher = client.fetcher()
    fetcher.post({tp: 0}, max_wait_ms=LONG_MS)
    fetcher.half_close()
    wait_until(lambda: parked(running) == 1)
    fill(client, tp, 1)
    _, (batches,) = fetcher.answer()
    assert base_offsets(batches) == [0]
    assert fetcher.status()[0].name == "OK"


def test_long_polls_of_one_stream_hold_nobody_else_up(running: RunningDaemon, client: RawClient) -> None:
    waiting, busy = client.create_topic(partitions=2)
    parked_fetchers = [client.fetcher() for _ in range(50)]
    for fetcher in parked_fetchers:
        fetcher.post({waiting: 0}, max_wait_ms=LONG_MS)
    wait_until(lambda: parked(running) == 50)
    fill(client, busy, 5)
    assert parked(running) == 50, "an append wakes its own waiters only"
    assert len(client.fetcher().fetch({busy: 0})[1][0]) == 5
    fill(client, waiting, 1)
    for fetcher in parked_fetchers:
        assert base_offsets(fetcher.answer()[1][0]) == [0]


def test_a_cold_read_waits_in_a_thread_and_the_broker_goes_on(client: RawClient, files: MemoryFiles) -> None:
    (tp,) = client.create_topic()
    fill(client, tp, 3)
    files.is_cold = True
    fetcher = client.fetcher()
    with Gate(files, "pread", path=tp.directory_name) as gate:
        fetcher.post({tp: 0})
        gate.wait_until_reached()
        assert client.metadata("t").topics[0].name == "t"
    assert len(fetcher.answer()[1][0]) == 3


@pytest.mark.parametrize("settings", [{"max_parked_partitions": 4}], indirect=True)
def test_more_parked_fetches_than_allowed_are_told_to_come_again(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    fetchers = [client.fetcher() for _ in range(3)]
    for fetcher in fetchers:
        fetcher.post({tp: 0}, max_wait_ms=LONG_MS)
    wait_until(lambda: parked(running) == 3)
    head, _ = client.fetcher().fetch({tp: 0}, max_wait_ms=LONG_MS)
    assert ErrorCode(head.error.code) is ErrorCode.RESOURCE_EXHAUSTED
    assert head.error.retriable
    assert head.error.retry_after_ms > 0
    assert "max.parked.partitions" in head.error.message


@pytest.mark.parametrize("settings", [{"max_parked_partitions": 5}], indirect=True)
def test_partitions_of_parked_fetches_are_bounded_and_those_that_end_make_room(running: RunningDaemon, client: RawClient) -> None:
    tps = client.create_topic(partitions=4)
    first = client.fetcher()
    first.post(dict.fromkeys(tps, 0), max_wait_ms=LONG_MS)
    wait_until(lambda: parked(running) == 1)
    head, _ = client.fetcher().fetch(dict.fromkeys(tps[:2], 0), max_wait_ms=LONG_MS)
    assert ErrorCode(head.error.code) is ErrorCode.RESOURCE_EXHAUSTED
    assert "max.parked.partitions" in head.error.message
    client.producer().produce(tps[0], values_batch(tps[0]))
    first.answer()
    last = client.fetcher()
    last.post(dict.fromkeys(tps, 0) | {tps[0]: 1}, max_wait_ms=LONG_MS)
    wait_until(lambda: parked(running) == 1)
    shares = running.daemon.broker.parked_partitions
    assert shares.total == 4
    last.cancel()
    wait_until(lambda: shares.total == 0)


def test_a_read_goes_across_segments(client: RawClient) -> None:
    (tp,) = client.create_topic(segment_bytes="4096")
    size = fill(client, tp, 12)
    assert client.describe().partitions[0].segment_count > 2
    _, (batches,) = client.fetcher().fetch({tp: 1}, min_bytes=11 * size, max_wait_ms=LONG_MS)
    assert base_offsets(batches) == list(range(1, 12))


@pytest.mark.parametrize(
    "settings", [{"log_segment_bytes": 4_096, "log_retention_check_interval_ms": 20, "log_retention_ms": -1}], indirect=True
)
def test_retention_wakes_who_waits_for_more_behind_what_it_takes(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    fill(client, tp, 60)
    fetcher = client.fetcher()
    fetcher.post({tp: 0}, max_wait_ms=LONG_MS, min_bytes=2**20)
    wait_until(lambda: parked(running) == 1)
    broker = running.daemon.broker
    topic = broker.topics.by_id(tp.topic_id)
    running.run(broker.admin.run(broker.topic_changes.alter(topic.name, {"retention.bytes": "4096"}, [])))
    head, _ = fetcher.answer()
    assert ErrorCode(head.results[0].error.code) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert head.results[0].error.log_start_offset == broker.partitions.leader(tp).ends.log_start_offset > 0
