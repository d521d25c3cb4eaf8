"""Goal: the fetcher delivers exactly the records of its ranges, in order, whatever happens to its streams, and ends or raises when
it should. Method: a broker in memory behind a real port, with injected faults.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from brokerd.client.blocking import BlockingClient
from brokerd.client.fetching import NO_END, RESPONSES_AHEAD, FetchRange, PartitionFetcher
from brokerd.clock import Clock
from brokerd.config.client import ConsumerConfig
from brokerd.errors import (
    BrokerUnreachableError,
    ClientError,
    CorruptMessageError,
    LogDamagedError,
    NotLeaderError,
    NotReadyError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
)
from brokerd.record.header import Attributes
from tests.support.clock import HastyClock, ManualClock
from tests.support.consumers import fill, put_marker
from tests.support.fake_broker import FakeBroker, fake_broker
from tests.support.ports import held_port
from tests.support.records import key_values, new_batch, poisoned, spoilt
from tests.support.wait import DEADLINE_S, wait_until


def config(broker: FakeBroker, **settings: int | str) -> ConsumerConfig:
    values: dict[str, int | str] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 2, "fetch_max_wait_ms": 10, **settings}
    return ConsumerConfig(bootstrap_servers=f"127.0.0.1:{broker.port}", **values)  # type: ignore[arg-type]


@contextlib.contextmanager
def fetching(
    broker: FakeBroker, ranges: list[FetchRange], *, clock: Clock | None = None, **settings: int | str
) -> Iterator[PartitionFetcher]:
    consumer = config(broker, **settings)
    with BlockingClient(consumer, clock) as client, PartitionFetcher(client, ranges, consumer) as fetcher:
        yield fetcher


def read(
    broker: FakeBroker, ranges: list[FetchRange], *, clock: Clock | None = None, **settings: int | str
) -> dict[int, list[int]]:
    """Reads the ranges; returns the offsets read by partition. Checks that each value is its record's offset as text."""
    offsets: dict[int, list[int]] = {}
    with fetching(broker, ranges, clock=clock, **settings) as fetcher:
        for batch in fetcher:
            got = batch.offsets.to_pylist()
            assert batch.arrow_batch.column("value").to_pylist() == [b"%d" % offset for offset in got]
            offsets.setdefault(batch.tp.partition, []).extend(got)
        assert fetcher.is_over
    return offsets


def test_range_is_read_exactly_and_nothing_is_fetched_past_it(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    fill(partition, [10] * 20)
    assert read(broker, [FetchRange(partition.tp, 15, 42)], max_partition_fetch_bytes=1) == {0: list(range(15, 42))}
    assert broker.fetched_offsets == [15, 20, 30, 40]


def test_empty_range_is_over_without_a_fetch(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    assert read(broker, [FetchRange(partition.tp, 5, 5)]) == {}
    assert broker.calls["Fetch"] == 0


def test_streams_that_break_lose_and_repeat_nothing(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    fill(partition, [3, 1, 7, 20] * 25)
    chance = random.Random(7)
    broker.cut_fetch_after = [chance.randrange(4) for _ in range(30)]
    assert read(broker, [FetchRange(partition.tp, 2, 770)], max_partition_fetch_bytes=3_000) == {0: list(range(2, 770))}
    assert broker.calls["Fetch"] >= 10


def test_many_partitions_are_read_in_one_stream(broker: FakeBroker) -> None:
    partitions = broker.create("t", 5)
    for number, partition in enumerate(partitions):
        fill(partition, [10] * (number + 1))
    ranges = [FetchRange(partition.tp, number, partition.end_offset) for number, partition in enumerate(partitions)]
    assert read(broker, ranges, max_partition_fetch_bytes=1) == {
        number: list(range(number, 10 * (number + 1))) for number in range(5)
    }
    assert broker.calls["Fetch"] == 1


def test_answers_with_room_for_one_partition_only_starve_and_lose_none(broker: FakeBroker) -> None:
    partitions = broker.create("t", 4)
    for partition in partitions:
        fill(partition, [5] * 6)
    with fetching(broker, [FetchRange(partition.tp, 0, 30) for partition in partitions], fetch_max_bytes=1) as fetcher:
        order = [batch.tp.partition for batch in fetcher]
    assert order == [0, 1, 2, 3] * 6


def test_error_that_never_passes_is_raised_after_the_time_limit(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    broker.errors["Fetch"] = [NotReadyError("starting") for _ in range(10_000)]
    with pytest.raises(NotReadyError, match=r"starting \(tried \d+ times in \d+\.\d s\)"):
        read(broker, [FetchRange(partition.tp, 0, 10)], clock=HastyClock())


def test_control_and_aborted_batches_at_the_end_of_the_range(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    fill(partition, [4])
    aborted = new_batch(key_values([b"x", b"y"]), tp=partition.tp, attributes=int(Attributes.TRANSACTIONAL), producer_id=9)
    first = partition.put(aborted)
    marker = partition.put(
        new_batch(key_values([b"m"]), tp=partition.tp, attributes=int(Attributes.CONTROL | Attributes.TRANSACTIONAL))
    )
    partition.aborted.append((9, first, marker))
    assert read(broker, [FetchRange(partition.tp, 0, 7)]) == {0: [0, 1, 2, 3]}
    assert read(broker, [FetchRange(partition.tp, 4, 7)]) == {}


def test_retriable_errors_of_a_partition_are_repeated(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    fill(partition, [10])
    broker.errors["Fetch"] = [NotReadyError("starting"), NotLeaderError("moved"), NotReadyError("starting")]
    assert read(broker, [FetchRange(partition.tp, 0, 10)]) == {0: list(range(10))}
    assert broker.calls["Metadata"] >= 3


@pytest.mark.parametrize("error", [OffsetOutOfRangeError("gone", log_start_offset=5), LogDamagedError("damaged")])
def test_final_errors_are_raised_as_they_are(broker: FakeBroker, error: OffsetOutOfRangeError | LogDamagedError) -> None:
    (partition,) = broker.create("t")
    fill(partition, [10])
    broker.errors["Fetch"] = [error]
    with pytest.raises(type(error), match=error.message) as raised:
        read(broker, [FetchRange(partition.tp, 0, 10)])
    assert raised.value.log_start_offset == error.log_start_offset


def test_records_before_an_error_are_delivered_first(broker: FakeBroker) -> None:
    partitions = broker.create("t", 2)
    for partition in partitions:
        fill(partition, [10])
    partitions[1].log_start_offset = 5
    with fetching(broker, [FetchRange(partition.tp, 0, 10) for partition in partitions]) as fetcher:
        first = fetcher.next_batch()
        assert first is not None
        assert first.tp == partitions[0].tp
        with pytest.raises(OffsetOutOfRangeError):
            fetcher.next_batch()
        assert fetcher.next_batch() is None


def test_error_of_one_partition_costs_the_others_in_its_response_nothing(broker: FakeBroker) -> None:
    partitions = broker.create("t", 3)
    for partition in partitions:
        fill(partition, [10])
    partitions[0].log_start_offset = 5
    with fetching(broker, [FetchRange(partition.tp, 0, 10) for partition in partitions]) as fetcher:
        read_first = [batch.tp.partition for _ in range(2) if (batch := fetcher.next_batch()) is not None]
        assert read_first == [1, 2]
        with pytest.raises(OffsetOutOfRangeError) as raised:
            fetcher.next_batch()
        assert fetcher._pump.partition_of(raised.value) == partitions[0].tp


def test_deleted_topic_is_told(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    del broker.topics["t"]
    with pytest.raises(UnknownTopicIdError):
        read(broker, [FetchRange(partition.tp, 0, 10)])


def test_range_past_the_end_of_the_log_is_told_after_the_time_limit(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    fill(partition, [10])
    with pytest.raises(OffsetOutOfRangeError, match=r"ends at 12, but it can be read up to 10, and nothing arrived for \d+\.\d s"):
        read(broker, [FetchRange(partition.tp, 0, 12)], clock=HastyClock())


def test_streams_that_break_do_not_put_off_the_time_limit(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    fill(partition, [10])
    broker.cut_fetch_after = [1] * 20
    with pytest.raises(OffsetOutOfRangeError, match="ends at 12, but it can be read up to 10"):
        read(broker, [FetchRange(partition.tp, 0, 12)], clock=HastyClock())
    assert broker.cut_fetch_after


@pytest.mark.parametrize("is_appended", [True, False])
def test_the_time_that_a_reader_takes_is_not_time_without_progress(broker: FakeBroker, is_appended: bool) -> None:
    (partition,) = broker.create("t")
    fill(partition, [10] * 4)
    consumer, clock = config(broker, max_partition_fetch_bytes=1), ManualClock()
    with (
        BlockingClient(consumer, clock) as client,
        PartitionFetcher(client, [FetchRange(partition.tp, 0, 41)], consumer) as fetcher,
    ):
        assert fetcher.next_batch() is not None
        wait_until(lambda: fetcher._items.qsize() == RESPONSES_AHEAD)
        client.metadata()  # after this round trip, the pump waits for room
        clock.advance(2 * consumer.api_timeout_ms)
        for _ in range(RESPONSES_AHEAD):
            assert fetcher.next_batch() is not None
        wait_until(lambda: fetcher._items.qsize() > 0 or len(broker.fetched_offsets) > 10)  # after several empty responses
        if is_appended:
            fill(partition, [1])
            batch = fetcher.next_batch()
            assert batch is not None
            assert batch.offsets.to_pylist() == [40]
        else:
            clock.advance(consumer.api_timeout_ms)
            with pytest.raises(OffsetOutOfRangeError, match=r"it can be read up to 40, and nothing arrived for 60\.0 s"):
                fetcher.next_batch()


@pytest.fixture
def late(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock of a reader whose fetches each take twice its time limit."""
    clock, answer = ManualClock(), broker._fetched

    def answer_late(request: Any) -> bytes:
        clock.advance(2 * ConsumerConfig().api_timeout_ms)
        return answer(request)

    monkeypatch.setattr(broker, "_fetched", answer_late)
    return clock


def test_a_gap_at_the_end_of_a_range_may_be_told_late(broker: FakeBroker, late: ManualClock) -> None:
    (partition,) = broker.create("t")
    fill(partition, [10])
    partition.end_offset = 20
    assert read(broker, [FetchRange(partition.tp, 0, 15)], clock=late) == {0: list(range(10))}


@pytest.mark.parametrize("is_repaired", [True, False])
@pytest.mark.parametrize("until_offset", [20, 25])
def test_a_batch_that_comes_damaged_at_the_last_moment_is_fetched_once_more(
    broker: FakeBroker, late: ManualClock, until_offset: int, is_repaired: bool
) -> None:
    (partition,) = broker.create("t")
    fill(partition, [10, 10])
    base_offset, next_offset, data = partition.batches[1]
    partition.batches[1] = (base_offset, next_offset, spoilt(data))
    if is_repaired:
        partition.repaired[base_offset] = data
    with fetching(broker, [FetchRange(partition.tp, 0, until_offset, "t")], clock=late) as fetcher:
        assert fetcher.next_batch() is not None
        if is_repaired:
            batch = fetcher.next_batch()
            assert batch is not None
            assert batch.offsets.to_pylist() == list(range(10, 20))
        else:
            with pytest.raises(CorruptMessageError, match="batch at offset 10: payload_crc"):
                fetcher.next_batch()
    assert broker.checked_offsets == [10]


def test_a_batch_that_is_whole_when_it_is_checked_costs_no_record_and_no_error(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    partitions = broker.create("t", 2)
    for partition in partitions:
        fill(partition, [10] * 5)
    for number in (1, 3, 4):
        base_offset, next_offset, data = partitions[0].batches[number]
        partitions[0].repaired[base_offset] = data
        partitions[0].batches[number] = (base_offset, next_offset, spoilt(data))
    ranges = [FetchRange(partition.tp, 0, 50, "t") for partition in partitions]
    assert read(broker, ranges) == {0: list(range(50)), 1: list(range(50))}
    assert broker.checked_offsets == [10, 30, 40]
    assert [text for text in caplog.messages if "once more" in text] == [
        f"t-0: the batch at offset {offset} came damaged, and is fetched once more" for offset in (10, 30, 40)
    ]


def test_corrupt_batch_is_told_with_its_place_and_what_to_do(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    good = new_batch(key_values([b"0"]), tp=partition.tp)
    partition.put(good)
    partition.put(spoilt(good))
    with pytest.raises(CorruptMessageError, match=r"^t-0: batch at offset 1: payload_crc.*brokerd doctor.*skip.corrupt.batches"):
        read(broker, [FetchRange(partition.tp, 0, 2, "t")])


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_batches_that_cannot_be_decoded_are_skipped_and_said_where_that_is_asked(
    broker: FakeBroker, compression: str, caplog: pytest.LogCaptureFixture
) -> None:
    (partition,) = broker.create("t")
    fill(partition, [5])
    partition.put(poisoned(new_batch(key_values([b"x" * 500] * 5), compression), compression))
    fill(partition, [5])
    with pytest.raises(CorruptMessageError, match=r"^t-0: batch at offset 5.*--take-out t-0@5`.*skip\.corrupt\.batches"):
        read(broker, [FetchRange(partition.tp, 0, 15, "t")])
    assert read(broker, [FetchRange(partition.tp, 0, 15, "t")], skip_corrupt_batches=True) == {
        0: [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    }
    assert read(broker, [FetchRange(partition.tp, 3, 8)], skip_corrupt_batches=True) == {0: [3, 4]}
    said = [record.getMessage() for record in caplog.records if "skip.corrupt.batches" in record.getMessage()]
    assert ["offsets 5 to 9 are skipped" in text for text in said] == [True, False]
    assert said[0].startswith("t-0: offsets 5 to 9")
    assert "offsets 5 to 7 are skipped" in said[1]
    assert "batch at offset 5" in said[1]


@pytest.mark.parametrize("is_follower", [True, False])
def test_damage_is_gone_past_and_said_once_where_that_is_asked(
    broker: FakeBroker, is_follower: bool, caplog: pytest.LogCaptureFixture
) -> None:
    (partition,) = broker.create("t")
    fill(partition, [5, 5])
    broker.errors["Fetch"] = [LogDamagedError("rotten", resume_offset=3), NotReadyError("busy")]
    until = NO_END if is_follower else 8
    offsets: list[int] = []
    with fetching(broker, [FetchRange(partition.tp, 1, until, "t")], skip_corrupt_batches=True) as fetcher:
        while len(offsets) < min(until, 10) - 3 and (batch := fetcher.next_batch()) is not None:
            offsets += batch.offsets.to_pylist()
    assert offsets == list(range(3, min(until, 10)))
    assert [text for text in caplog.messages if "are skipped" in text] == ["t-0: offsets 1 to 2 are skipped: rotten"]


def test_a_broker_that_sends_a_reader_back_ends_it(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    fill(partition, [5, 5])
    broker.errors["Fetch"] = [LogDamagedError("rotten", resume_offset=offset) for offset in (3, 4, 3, 9)]
    with pytest.raises(LogDamagedError, match=r"^rotten$"):
        read(broker, [FetchRange(partition.tp, 1)], skip_corrupt_batches=True)
    assert broker.fetched_offsets == [1, 3, 4]


def test_broker_that_stays_away_is_told_with_address_and_time() -> None:
    with held_port() as port:
        with fake_broker(port) as broker:
            (partition,) = broker.create("t")
            fill(partition, [10])
            consumer = config(broker)
            client = BlockingClient(consumer, HastyClock())
            fetcher = PartitionFetcher(client, [FetchRange(partition.tp, 0)], consumer)
            assert fetcher.next_batch() is not None
        with (
            client,
            fetcher,
            pytest.raises(BrokerUnreachableError, match=rf"no broker responded at 127\.0\.0\.1:{port} in \d+\.\d s"),
        ):
            fetcher.next_batch()


def test_following_reader_sees_what_is_appended_later_and_may_stop_waiting(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    with fetching(broker, [FetchRange(partition.tp, 0)]) as fetcher:
        assert fetcher.next_batch(timeout_ms=1) is None
        assert not fetcher.is_over
        fill(partition, [2])
        batch = fetcher.next_batch()
        assert batch is not None
        assert batch.offsets.to_pylist() == [0, 1]


def test_markers_do_not_put_off_the_end_of_a_wait(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    has_ended = threading.Event()

    def write() -> None:
        while not has_ended.wait(0.02):
            put_marker(partition)

    with fetching(broker, [FetchRange(partition.tp, 0)]) as fetcher:
        writing, waiting = threading.Thread(target=write), threading.Thread(target=fetcher.next_batch, args=(500,))
        writing.start()
        waiting.start()
        waiting.join(DEADLINE_S)
        is_over = not waiting.is_alive()
        has_ended.set()
        writing.join()
    waiting.join()
    assert is_over


def test_slow_reader_holds_the_broker_back(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    fill(partition, [10] * 50)
    consumer = config(broker, max_partition_fetch_bytes=1)
    with BlockingClient(consumer) as client, PartitionFetcher(client, [FetchRange(partition.tp, 0, 500)], consumer) as fetcher:
        assert fetcher.next_batch() is not None
        client.metadata()  # after these round trips, nothing more is fetched
        client.metadata()
        assert len(broker.fetched_offsets) <= 4
        assert sum(batch.record_count for batch in fetcher) == 490


def test_closed_client_ends_its_fetchers(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    consumer = config(broker)
    client = BlockingClient(consumer)
    fetcher = PartitionFetcher(client, [FetchRange(partition.tp, 0)], consumer)
    client.close()
    with pytest.raises(ClientError, match="closed"):
        fetcher.next_batch()
    fetcher.close()
