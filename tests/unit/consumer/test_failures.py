"""Goal: failures are reported with what to do, and stop nothing else; invalid calls are refused. Method: a broker in memory, with
injected faults.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import brokerd
from brokerd import Consumer, ConsumerRecord, Producer
from brokerd.errors import (
    BrokerdError,
    BrokerUnreachableError,
    ConfigError,
    ConsumerStateError,
    CorruptMessageError,
    LogDamagedError,
    NoOffsetForPartitionError,
    NotReadyError,
    OffsetOutOfRangeError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from brokerd.wire.v1 import fetch_pb2
from tests.support.clock import HastyClock
from tests.support.consumers import LONG_MS, T0, T1, fill, filled, offsets, read, settings
from tests.support.fake_broker import FakeBroker, fake_broker, fake_cluster
from tests.support.records import key_values, new_batch, poisoned, spoilt
from tests.support.wait import DEADLINE_S

# --- refusals


def test_calls_for_what_is_not_assigned_are_refused(consumer: Consumer) -> None:
    for call in (consumer.pause, consumer.resume, consumer.seek_to_end, consumer.position):
        with pytest.raises(ConsumerStateError, match=r"t-0 is not assigned to this consumer: assign\(\) it first"):
            call(T0)
    with pytest.raises(ConsumerStateError, match="t-0 is not assigned"):
        consumer.seek(T0, 1)
    with pytest.raises(ConsumerStateError, match=r"no partition is assigned to this consumer: assign\(\) some first"):
        consumer.poll(0)


def test_subscribe_is_refused_with_what_to_do(consumer: Consumer) -> None:
    with pytest.raises(ConsumerStateError, match=r"assign\(\) them.*partitions_for"):
        consumer.subscribe(["t"])


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda consumer: consumer.assign("t"), TypeError),
        (lambda consumer: consumer.assign(["t"]), TypeError),
        (lambda consumer: consumer.assign([("t", -1)]), ValueError),
        (lambda consumer: consumer.assign([("t/", 0)]), ValueError),
        (lambda consumer: consumer.poll(-1), ValueError),
        (lambda consumer: consumer.poll(1.5), TypeError),
        (lambda consumer: consumer.poll(0, 0), ValueError),
        (lambda consumer: consumer.seek(T0, -1), ValueError),
        (lambda consumer: consumer.offsets_for_times({T0: -5}), ValueError),
        (lambda consumer: consumer.offsets_for_times(T0), TypeError),
        (lambda consumer: consumer.pause(None), TypeError),
        (lambda consumer: consumer.resume(None), TypeError),
    ],
)
def test_arguments_are_checked(consumer: Consumer, call: Callable[[Consumer], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        call(consumer)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'auto\.offset\.rest'.*'auto\.offset\.reset'"):
        Consumer(auto_offset_rest="latest")
    with pytest.raises(ConfigError, match="must be one of earliest, latest, none"):
        Consumer({"auto.offset.reset": "smallest"})


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ("127.0.0.1:9192", "settings must be a mapping by name, such as .*bootstrap.servers.*, not of type str"),
        ([("auth.token", "secret")], "not of type list$"),
        ({5: "x"}, "the name of a setting must be text, not 5"),
    ],
)
@pytest.mark.parametrize("kind", [Consumer, Producer, partial(brokerd.read, "t")])
def test_settings_that_are_no_mapping_by_name_are_refused(kind: Callable[..., object], config: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        kind(config=config)


def test_a_topic_in_place_of_the_settings_is_answered_with_how_to_assign_it() -> None:
    with pytest.raises(ConfigError, match=r"not of type str; assign\(\) the partitions of topics, such as \[") as caught:
        Consumer("orders", bootstrap_servers="h:1")  # type: ignore[arg-type]
    assert "orders" not in str(caught.value), "it may be a token"


def test_topic_or_partition_that_is_not_there(broker: FakeBroker, consumer: Consumer) -> None:
    consumer.assign([T1])
    with pytest.raises(UnknownTopicOrPartitionError, match=r"there is no topic 't': create it \(brokerd topics create t "):
        consumer.poll(LONG_MS)
    broker.create("t")
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 't' has no partition 1, it has 0 to 0"):
        consumer.poll(LONG_MS)
    broker.create("t", 2)
    assert consumer.poll(10) == []


# --- look-ups


def test_offsets_and_partitions_are_told(broker: FakeBroker, consumer: Consumer) -> None:
    first, _ = broker.create("t", 2)
    fill(first, [10])
    first.log_start_offset = 4
    assert consumer.partitions_for("t") == 2
    assert consumer.beginning_offsets([T0, T1]) == {T0: 4, T1: 0}
    assert consumer.end_offsets([T0, T1]) == {T0: 10, T1: 0}
    assert consumer.end_offsets([]) == {}
    with pytest.raises(UnknownTopicOrPartitionError, match="there is no topic 'u'"):
        consumer.end_offsets(("u", 0))
    with pytest.raises(UnknownTopicOrPartitionError, match="topic 't' has no partition 2, it has 0 to 1"):
        consumer.end_offsets([T0, ("t", 2)])
    with pytest.raises(UnknownTopicOrPartitionError):
        consumer.partitions_for("u")


# --- failures


def test_errors_that_pass_are_not_told(broker: FakeBroker, consumer: Consumer) -> None:
    filled(broker, [3])
    broker.errors["Fetch"] = [NotReadyError("starting")] * 3
    consumer.assign([T0])
    assert offsets(read(consumer, 3)) == [0, 1, 2]


@pytest.mark.parametrize(("reset", "then"), [("earliest", 30), ("latest", 40)])
def test_offset_that_is_gone_obeys_auto_offset_reset_and_is_said(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, reset: str, then: int
) -> None:
    (partition,) = broker.create("t")
    fill(partition, [10] * 4)
    partition.log_start_offset = 30
    with Consumer(settings(broker, auto_offset_reset=reset)) as consumer, caplog.at_level(logging.WARNING):
        consumer.assign([T0])
        consumer.seek(T0, 5)
        records: list[ConsumerRecord] = []
        while not records and consumer.position(T0) == 5:
            records = consumer.poll(10)
        fill(partition, [1])
        assert (records or read(consumer, 1))[0].offset == then
    said = [text for text in caplog.messages if "auto.offset.reset" in text]
    assert said[0].startswith("t-0: offset 5 is out of range")
    assert said[0].endswith(f"auto.offset.reset is {reset}: reading continues at offset {then}")


def test_offset_that_is_gone_is_an_error_if_auto_offset_reset_is_none(broker: FakeBroker) -> None:
    for partition in broker.create("t", 2):
        fill(partition, [10] * 4)
        partition.log_start_offset = 30
    with Consumer(settings(broker, auto_offset_reset="none")) as consumer:
        consumer.assign([T0, T1])
        consumer.seek(T0, 5)
        consumer.seek(T1, 35)
        seen: list[int] = []
        failures: list[OffsetOutOfRangeError] = []
        while len(seen) < 5 or not failures:
            try:
                seen += [record.offset for record in consumer.poll(LONG_MS)]
            except OffsetOutOfRangeError as error:
                failures.append(error)
        assert str(failures[0]).startswith("t-0: offset 5 is out of range; seek() to an offset")
        assert seen == list(range(35, 40)), "the other partition is read all the same"
        consumer.seek(T0, failures[0].log_start_offset)
        assert offsets(read(consumer, 10)) == list(range(30, 40))


def test_a_partition_that_always_fails_does_not_starve_those_of_a_slower_leader() -> None:
    with fake_cluster(2) as cluster:
        _, second = cluster.create("t")
        fill(second, [2] * 3)
        cluster.nodes[1].fetch_delay_s = 0.2
        given = {**settings(cluster.nodes[0], auto_offset_reset="none"), "bootstrap.servers": cluster.servers}
        with Consumer(given) as consumer:
            consumer.assign([T0, T1])
            consumer.seek(T0, 50)
            consumer.seek(T1, 0)
            seen: list[int] = []
            failures = 0
            while failures < 5:
                try:
                    seen += [record.offset for record in consumer.poll(LONG_MS)]
                except OffsetOutOfRangeError:
                    failures += 1
    assert seen == list(range(6))


def test_corrupt_batch_is_told_until_it_is_passed_and_stops_only_its_partition(broker: FakeBroker, consumer: Consumer) -> None:
    first, second = broker.create("t", 2)
    fill(first, [2])
    first.put(spoilt(new_batch(key_values([b"2"]), tp=first.tp)))
    fill(first, [2])
    fill(second, [2] * 3)
    consumer.assign([T0, T1])
    seen: list[tuple[int, int]] = []
    failures: list[str] = []
    while len(failures) < 3 or len(seen) < 8:
        try:
            seen += [(record.partition, record.offset) for record in consumer.poll(LONG_MS, 1)]
        except CorruptMessageError as error:
            failures.append(str(error))
    assert all(text.startswith("t-0: batch at offset 2") for text in failures)
    assert sorted(seen) == [(0, 0), (0, 1), *((1, offset) for offset in range(6))]
    assert consumer.position(T0) == 2
    consumer.seek(T0, 3)
    assert offsets(read(consumer, 2)) == [3, 4]


def test_a_batch_that_cannot_be_decoded_does_not_hold_up_what_arrives_after_it(broker: FakeBroker, consumer: Consumer) -> None:
    first, second = broker.create("t", 2)
    first.put(poisoned(new_batch(key_values([b"0"]), tp=first.tp), tp=first.tp))
    consumer.assign([T0, T1])
    with pytest.raises(CorruptMessageError):
        consumer.poll(LONG_MS)
    fill(second, [2] * 3)
    seen: list[int] = []
    deadline_s = time.monotonic() + DEADLINE_S
    while len(seen) < 6:
        assert time.monotonic() < deadline_s, f"read {seen}"
        with contextlib.suppress(CorruptMessageError):
            seen += [record.offset for record in consumer.poll(LONG_MS)]
    assert seen == list(range(6))


def test_a_broker_that_starts_again_with_lower_limits_is_asked_by_them(
    broker: FakeBroker, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker refuses the partitions beyond its limit, in every request."""
    fetched, named = FakeBroker._fetched, list[int]()

    def counted(broker: FakeBroker, request: fetch_pb2.FetchRequest) -> bytes:
        named.append(len(request.partitions))
        broker.limits["max.partitions.per.request"] = 1
        return fetched(broker, request)

    monkeypatch.setattr(FakeBroker, "_fetched", counted)
    for partition in broker.create("t", 2):
        fill(partition, [2])
    broker.cut_fetch_after = [1]
    consumer.assign([T0, T1])
    assert len(read(consumer, 4)) == 4
    for partition in broker.topics["t"]:
        fill(partition, [3])
    assert len(read(consumer, 6)) == 6
    assert named[0] == 2
    assert set(named[2:]) == {1}


def test_what_follows_a_batch_that_cannot_be_decoded_is_not_kept(broker: FakeBroker) -> None:
    partition = filled(broker, [1])
    partition.put(poisoned(new_batch(key_values([b"1"]), tp=partition.tp), tp=partition.tp))
    for _ in range(100):
        partition.put(new_batch(key_values([bytes(1_000)] * 100), tp=partition.tp))
    with Consumer(settings(broker, fetch_max_bytes=200_000, max_partition_fetch_bytes=200_000)) as consumer:
        consumer.assign([T0])
        assert offsets(read(consumer, 1)) == [0]
        for _ in range(100):
            with pytest.raises(CorruptMessageError):
                consumer.poll(LONG_MS)
        assert consumer._fetching._buffer.size_bytes < 2_000_000, "of ten million"
        consumer.seek(T0, 2)
        assert len(read(consumer, 10_000)) == 10_000


def test_an_interrupt_does_not_hide_a_batch_that_cannot_be_decoded(broker: FakeBroker, consumer: Consumer) -> None:
    (partition,) = broker.create("t")
    partition.put(poisoned(new_batch(key_values([b"0"]), tp=partition.tp), tp=partition.tp))
    consumer.assign([T0])
    for _ in range(2):
        with pytest.raises(CorruptMessageError):
            consumer.poll(LONG_MS)
        consumer._fetching.reset()  # as an interrupt does: the buffer may be inconsistent


def test_who_waits_for_a_position_reads_no_more_than_a_buffer_of_others(broker: FakeBroker) -> None:
    with fake_broker() as other:
        other.node_id, other.topics = 1, broker.topics
        broker.nodes = other.nodes = [broker, other]
        partition, away = broker.create("t", 2)
        away.leader = -1
        for _ in range(100):
            partition.put(new_batch(key_values([bytes(1_000)] * 100), tp=partition.tp))
        limits = {"fetch_max_bytes": 200_000, "max_partition_fetch_bytes": 200_000, "default_api_timeout_ms": 2_000}
        with Consumer(settings(broker, **limits)) as consumer:
            consumer.assign([T0, T1])
            with pytest.raises(BrokerdError):
                consumer.position(T1)
            assert 0 < consumer._fetching._buffer.size_bytes < 2_000_000, "of ten million"
            away.leader = 0
            assert len(read(consumer, 10_000)) == 10_000


def test_corrupt_batches_are_skipped_where_that_is_asked(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    partition.put(spoilt(new_batch(key_values([b"0"]), tp=partition.tp)))
    fill(partition, [2])
    with Consumer(settings(broker, skip_corrupt_batches=True)) as consumer:
        consumer.assign([T0])
        assert offsets(read(consumer, 2)) == [1, 2]


def test_damage_is_told_and_the_next_poll_goes_on(broker: FakeBroker, consumer: Consumer) -> None:
    filled(broker, [2])
    broker.errors["Fetch"] = [LogDamagedError("rotten", resume_offset=1)]
    consumer.assign([T0])
    with pytest.raises(LogDamagedError, match=r"rotten; skip\.corrupt\.batches=true"):
        consumer.poll(LONG_MS)
    assert offsets(read(consumer, 2)) == [0, 1]


def test_deleted_topic_is_told_and_one_created_again_is_begun(broker: FakeBroker, consumer: Consumer) -> None:
    filled(broker, [5])
    consumer.assign([T0])
    assert offsets(read(consumer, 5)) == list(range(5))
    del broker.topics["t"]
    with pytest.raises(UnknownTopicIdError, match=r"topic 't' was deleted.*assign\(\) other partitions"):
        consumer.poll(LONG_MS)
    with pytest.raises(UnknownTopicOrPartitionError):
        consumer.poll(LONG_MS)
    (again,) = broker.create("t")
    fill(again, [2])
    assert offsets(read(consumer, 2)) == [0, 1]


@pytest.mark.parametrize("is_seen_again", [False, True])
def test_a_topic_that_goes_while_its_beginning_is_looked_for_is_not_asked_for_ever(
    broker: FakeBroker, consumer: Consumer, *, is_seen_again: bool
) -> None:
    filled(broker, [5])
    consumer.assign([T0])
    read(consumer, 5)
    topic = broker.topics.pop("t")
    consumer.seek_to_beginning()
    with pytest.raises(UnknownTopicIdError):
        consumer.poll(LONG_MS)
    with pytest.raises(UnknownTopicOrPartitionError):
        consumer.poll(LONG_MS)
    if is_seen_again:
        broker.topics["t"] = topic
    else:
        fill(broker.create("t")[0], [2])
    assert offsets(read(consumer, 2)) == [0, 1]


def test_a_topic_that_is_seen_again_is_read_on(broker: FakeBroker) -> None:
    partition = filled(broker, [5])
    with Consumer(settings(broker, auto_offset_reset="latest")) as consumer:
        consumer.assign([T0])
        consumer.seek(T0, 2)
        assert offsets(read(consumer, 3)) == [2, 3, 4]
        topic = broker.topics.pop("t")
        with pytest.raises(UnknownTopicIdError, match="this principal may no longer see it"):
            consumer.poll(LONG_MS)
        fill(partition, [2])
        broker.topics["t"] = topic
        assert offsets(read(consumer, 2)) == [5, 6]


def told_and_read(consumer: Consumer, count: int) -> str:
    """Reads at least `count` records, all of `t-0`, and until an error was raised as well; returns the error's text."""
    seen: list[ConsumerRecord] = []
    text = ""
    while len(seen) < count or not text:
        try:
            seen += consumer.poll(10)
        except (UnknownTopicOrPartitionError, UnknownTopicIdError, NoOffsetForPartitionError) as error:
            text = str(error)
    assert {record.topic_partition for record in seen} <= {T0}
    return text


def test_a_topic_that_is_not_there_stops_no_other(broker: FakeBroker, consumer: Consumer) -> None:
    filled(broker, [3])
    consumer.assign([T0, ("u", 0)])
    assert "there is no topic 'u'" in told_and_read(consumer, 3)
    consumer.seek(T0, 1)
    assert "there is no topic 'u'" in told_and_read(consumer, 2)


def test_a_topic_that_is_deleted_stops_no_other(broker: FakeBroker, consumer: Consumer) -> None:
    (partition,) = broker.create("t")
    broker.create("u")
    fill(partition, [3])
    consumer.assign([T0, ("u", 0)])
    read(consumer, 3)
    del broker.topics["u"]
    told_and_read(consumer, 0)
    for _ in range(2):
        fill(partition, [2])
        assert "there is no topic 'u'" in told_and_read(consumer, 2)


def test_a_partition_without_an_offset_stops_no_other(broker: FakeBroker) -> None:
    for partition in broker.create("t", 2):
        fill(partition, [3])
    with Consumer(settings(broker, auto_offset_reset="none")) as consumer:
        consumer.assign([T0, T1])
        consumer.seek(T0, 0)
        assert told_and_read(consumer, 3).startswith("t-1 has no offset to begin at")


def test_a_partition_is_read_while_another_is_looked_for(broker: FakeBroker, consumer: Consumer) -> None:
    first, _ = broker.create("t", 2)
    fill(first, [3])
    consumer.assign([T0])
    consumer.seek(T0, 0)
    consumer.position(T0)
    broker.errors["ListOffsets"] = [NotReadyError("starting")] * 100_000
    consumer.assign([T0, T1])
    assert offsets(read(consumer, 3)) == [0, 1, 2]
    fill(first, [3])
    consumer.seek(T0, 2)
    assert offsets(read(consumer, 4)) == [2, 3, 4, 5]


def test_a_leader_that_cannot_know_whether_it_leads_is_told_and_may_go_on() -> None:
    with fake_broker() as broker:
        partition = filled(broker, [3])
        with Consumer(settings(broker), clock=HastyClock()) as consumer:
            consumer.assign([T0])
            assert offsets(read(consumer, 3)) == [0, 1, 2]
            broker.errors["Fetch"] = [NotReadyError("reaches neither etcd nor another replica")] * 100_000
            with pytest.raises(NotReadyError, match="reaches neither etcd nor another replica"):
                read(consumer, 1)
            broker.errors["Fetch"] = []
            fill(partition, [2])
            assert offsets(read(consumer, 2)) == [3, 4]


def test_broker_that_stays_away_is_told_and_may_come_back(port: int) -> None:
    with fake_broker(port) as broker:
        partition = filled(broker, [3])
        consumer = Consumer(settings(broker), clock=HastyClock())
        consumer.assign([T0])
        assert offsets(read(consumer, 3)) == [0, 1, 2]
    with consumer:
        for call in (consumer.poll, partial(next, iter(consumer))):
            with pytest.raises(BrokerUnreachableError, match=rf"no broker responded at 127\.0\.0\.1:{port}"):
                call()
        topics = broker.topics
        with fake_broker(port) as again:
            again.topics = topics
            fill(partition, [2])
            records: list[ConsumerRecord] = []
            while not records:
                with contextlib.suppress(BrokerUnreachableError):
                    records = consumer.poll()
            assert offsets(records) == [3, 4]
