"""Produce streams: hello and its fence, malformed messages, budgets that throttle a client, ends of streams."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from brokerd.errors import ErrorCode, Fate
from brokerd.server.handlers import produce
from brokerd.wire.v1 import produce_pb2
from tests.support.daemon import RunningDaemon
from tests.support.files import MemoryFiles
from tests.support.gate import Gate
from tests.support.raw_client import RawClient, idempotent_batch, values_batch
from tests.support.wait import wait_until

INSTANCE = b"i" * 16


def test_a_stream_begins_with_hello(client: RawClient) -> None:
    (tp,) = client.create_topic()
    stream = client.producer()
    stream.hello = None
    stream.post([(tp, values_batch(tp))])
    code, details = stream.status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details == "hello: is missing in the stream's first message"
    assert client.latest(tp) == 0


def test_hello_may_stand_alone_and_is_not_answered(client: RawClient) -> None:
    (tp,) = client.create_topic()
    stream = client.producer()
    stream.post([])
    stream.post([(tp, values_batch(tp))])
    assert stream.answer().correlation_id == 2


def test_hello_stands_in_the_first_message_only_and_what_came_before_is_answered(client: RawClient) -> None:
    (tp,) = client.create_topic()
    stream = client.producer(instance_id=INSTANCE)
    stream.post([(tp, values_batch(tp))])
    stream.hello = produce_pb2.Hello(instance_id=INSTANCE, incarnation=2)
    stream.post([(tp, values_batch(tp))])
    assert stream.answer().results[0].base_offset == 0
    assert stream.status() == (grpc.StatusCode.INVALID_ARGUMENT, "hello: must be in a stream's first message only")
    assert client.latest(tp) == 1


@pytest.mark.parametrize(
    ("hello", "details"),
    [
        ({"instance_id": b"short"}, "hello.instance_id: has 5 bytes, but must have 16"),
        ({"incarnation": 0}, "hello.incarnation: is 0, but must be at least 1"),
        ({"incarnation": -4}, "hello.incarnation: is -4, but must be at least 1"),
    ],
)
def test_a_malformed_hello_names_its_field(client: RawClient, hello: dict[str, Any], details: str) -> None:
    stream = client.producer(**hello)
    stream.post([])
    assert stream.status() == (grpc.StatusCode.INVALID_ARGUMENT, details)


def test_after_a_newer_hello_nothing_of_the_older_stream_is_processed(client: RawClient) -> None:
    """The race that the fence prevents: the old stream still holds sequence 1 when the new one retries it under another."""
    (tp,) = client.create_topic()
    producer_id = client.new_producer_id()
    old = client.producer(instance_id=INSTANCE, incarnation=1)
    assert old.produce(tp, idempotent_batch(tp, producer_id, 0)).base_offset == 0
    new = client.producer(instance_id=INSTANCE, incarnation=2)
    assert new.produce(tp, idempotent_batch(tp, producer_id, 0, epoch=1)).base_offset == 1
    old.post([(tp, idempotent_batch(tp, producer_id, 1))])
    code, details = old.status()
    assert code is grpc.StatusCode.ABORTED
    assert "newer stream" in details
    assert client.latest(tp) == 2
    assert new.produce(tp, idempotent_batch(tp, producer_id, 1, epoch=1)).base_offset == 2


def test_the_fence_outlives_the_stream(client: RawClient, running: RunningDaemon) -> None:
    (tp,) = client.create_topic()
    first = client.producer(instance_id=INSTANCE, incarnation=5)
    first.produce(tp, values_batch(tp))
    first.half_close()
    assert first.status()[0] is grpc.StatusCode.OK
    late = client.producer(instance_id=INSTANCE, incarnation=4)
    late.post([(tp, values_batch(tp))])
    assert late.status()[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert len(running.daemon.broker.fence) == 1


def test_a_request_held_back_by_the_disk_is_fenced_too(running: RunningDaemon, client: RawClient) -> None:
    """A request is read, then held back (dirty bytes), a newer stream says hello, and there is room: it must not be appended."""
    (tp,) = client.create_topic()
    dirty = running.daemon.broker.dirty
    old = client.producer(instance_id=INSTANCE, incarnation=1)
    old.produce(tp, values_batch(tp))
    running.run(_add(dirty, dirty.limit))
    old.post([(tp, values_batch(tp))])
    wait_until(lambda: dirty.waiting == 1)
    new = client.producer(instance_id=INSTANCE, incarnation=2)
    new.post([])
    wait_until(lambda: running.daemon.broker.fence._open["anybody", INSTANCE].incarnation == 2)
    running.run(_add(dirty, -dirty.limit))
    assert old.status()[0] is grpc.StatusCode.ABORTED
    assert client.latest(tp) == 1


async def _add(budget: Any, delta_bytes: int, owner: str = "") -> None:
    budget.add(owner, delta_bytes)


async def _add_all(budget: Any, deltas_bytes: Mapping[str, int]) -> None:
    for owner, delta_bytes in deltas_bytes.items():
        budget.add(owner, delta_bytes)


def test_a_stream_with_too_many_waiting_requests_is_not_read(
    running: RunningDaemon, client: RawClient, files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "WAITING_REQUESTS_MAX", 4)
    (tp,) = client.create_topic()
    stream = client.producer()
    with Gate(files, "fdatasync", path=tp.directory_name) as gate:
        for _ in range(30):
            stream.post([(tp, values_batch(tp))])
        gate.wait_until_reached()
        wait_until(lambda: len(running.daemon.broker.produce_purgatory) == 4)
        assert client.describe().partitions[0].log_end_offset == 4
        other = client.producer()
        assert other.produce(tp, values_batch(tp), acks=1).base_offset == 4, "others are not held back"
    assert [stream.answer().correlation_id for _ in range(30)] == list(range(1, 31))


def test_a_stream_whose_response_cannot_be_encoded_ends(client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not wait for ever for a response that is never written; the batch is in the log."""

    def fail(_response: object) -> bytes:
        raise RuntimeError("planted")

    (tp,) = client.create_topic()
    stream = client.producer()
    with monkeypatch.context() as patched:
        patched.setattr(produce, "encode", fail)
        stream.post([(tp, values_batch(tp))])
        assert stream.status()[0] is grpc.StatusCode.INTERNAL
    assert client.producer(instance_id=b"o" * 16).produce(tp, values_batch(tp)).base_offset == 1


def test_a_stream_with_too_many_waiting_bytes_is_not_read(
    client: RawClient, files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce, "_WAITING_BYTES_MAX", 1_048_576)
    (tp,) = client.create_topic()
    stream = client.producer()
    batch = values_batch(tp, size=400_000)
    with Gate(files, "fdatasync", path=tp.directory_name) as gate:
        for _ in range(10):
            stream.post([(tp, batch)])
        gate.wait_until_reached()
        wait_until(lambda: client.describe().partitions[0].log_end_offset == 3)
        client.metadata("t")
        assert client.describe().partitions[0].log_end_offset == 3
    assert [stream.answer().results[0].base_offset for _ in range(10)] == list(range(10))


@pytest.mark.parametrize("settings", [{"log_max_dirty_bytes": 1_048_576}], indirect=True)
def test_producers_are_held_back_while_the_disk_is_behind(running: RunningDaemon, client: RawClient, files: MemoryFiles) -> None:
    (tp,) = client.create_topic()
    streams = [client.producer() for _ in range(4)]
    batch = values_batch(tp, size=300_000)
    with Gate(files, "fdatasync", path=tp.directory_name) as gate:
        for stream in streams:
            for _ in range(5):
                stream.post([(tp, batch)], acks=1)
        gate.wait_until_reached()
        wait_until(lambda: running.daemon.broker.dirty.waiting == len(streams))
        assert client.describe().partitions[0].log_end_offset == 4, "1.2 MB: what was let in last may exceed the limit"
        assert client.latest(tp) == 0, "the broker serves others meanwhile"
    for stream in streams:
        assert [stream.answer().correlation_id for _ in range(5)] == [1, 2, 3, 4, 5]
    wait_until(lambda: running.daemon.broker.dirty.used == 0)


def test_beyond_the_hard_limit_a_request_is_refused_with_a_hint(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    stream = client.producer()
    stream.produce(tp, values_batch(tp))
    in_flight = running.daemon.broker.in_flight
    service: Any = running.daemon._service
    owner = next(iter(service._streams)).caller.owner
    # As if many other streams had been read at the same moment; this one's read is already under way.
    running.run(_add(in_flight, 2 * in_flight.limit + 1, owner))
    dirty = running.daemon.broker.dirty
    running.run(_add(dirty, dirty.limit))
    stream.post([(tp, values_batch(tp))])
    answer = stream.answer()
    assert ErrorCode(answer.error.code) is ErrorCode.RESOURCE_EXHAUSTED
    assert Fate(answer.error.fate) is Fate.NOT_APPENDED
    assert answer.error.retry_after_ms > 0
    running.run(_add(dirty, -dirty.limit))
    running.run(_add(in_flight, -2 * in_flight.limit - 1, owner))
    assert stream.produce(tp, values_batch(tp)).base_offset == 1
    assert in_flight.used == 0


def test_beyond_the_hard_limit_whoever_has_little_in_memory_is_not_refused(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    stream = client.producer()
    stream.produce(tp, values_batch(tp))
    in_flight = running.daemon.broker.in_flight
    wait_until(lambda: in_flight.used == 0)
    dirty = running.daemon.broker.dirty
    running.run(_add(in_flight, 3 * in_flight.limit, "another"))
    running.run(_add(dirty, dirty.limit))
    stream.post([(tp, values_batch(tp))])
    wait_until(lambda: dirty.waiting == 1)
    running.run(_add(dirty, -dirty.limit))
    assert not stream.answer().HasField("error")
    running.run(_add(in_flight, -3 * in_flight.limit, "another"))


def test_streams_with_one_request_each_do_not_pass_the_hard_limit_together(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    stream = client.producer()
    stream.produce(tp, values_batch(tp))
    in_flight, dirty = running.daemon.broker.in_flight, running.daemon.broker.dirty
    others = {f"connection-{number}": 300_000 for number in range(2 * in_flight.limit // 300_000 + 1)}
    running.run(_add(dirty, dirty.limit))
    running.run(_add_all(in_flight, others))
    stream.post([(tp, values_batch(tp, size=400_000))])
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(stream.answer)
        wait_until(lambda: answer.done() or dirty.waiting == 1)
        is_held_back = dirty.waiting == 1
        running.run(_add_all(in_flight, {owner: -size for owner, size in others.items()}))
        running.run(_add(dirty, -dirty.limit))
    assert not is_held_back, "it was let in, beyond the hard limit"
    assert ErrorCode(answer.result().error.code) is ErrorCode.RESOURCE_EXHAUSTED
    assert in_flight.used == 0


@pytest.mark.parametrize("settings", [{"max_streams": 3}], indirect=True)
def test_more_streams_than_allowed_are_refused_and_room_is_given_back(running: RunningDaemon, client: RawClient) -> None:
    (tp,) = client.create_topic()
    first, second = client.producer(), client.producer()
    first.produce(tp, values_batch(tp))
    second.produce(tp, values_batch(tp))
    third = client.fetcher()  # only now, since streams of another kind may be admitted before those that wait
    third.post({tp: 0})
    code, details = third.status()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "max.streams" in details
    with RawClient(running.address) as other:
        last = other.fetcher()
        assert len(last.fetch({tp: 0})[1][0]) == 2, "one place is left to others"
        last.half_close()
        assert last.status()[0] is grpc.StatusCode.OK
    first.half_close()
    assert first.status()[0] is grpc.StatusCode.OK
    assert len(client.fetcher().fetch({tp: 0})[1][0]) == 2


@pytest.mark.parametrize("settings", [{"max_partitions_per_request": 2}], indirect=True)
def test_more_partitions_than_allowed_in_one_request_are_refused_whole(client: RawClient) -> None:
    tps = client.create_topic(partitions=3)
    stream = client.producer()
    stream.post([(tp, values_batch(tp)) for tp in tps])
    answer = stream.answer()
    assert ErrorCode(answer.error.code) is ErrorCode.INVALID_REQUEST
    assert "max.partitions.per.request (2)" in answer.error.message
    assert [client.latest(tp) for tp in tps] == [0, 0, 0]
    fetcher = client.fetcher()
    fetcher.post(dict.fromkeys(tps, 0))
    code, details = fetcher.status()
    assert (code, "max.partitions.per.request" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_a_client_that_goes_while_it_waits_leaves_nothing_behind(
    running: RunningDaemon, client: RawClient, files: MemoryFiles
) -> None:
    (tp,) = client.create_topic()
    broker = running.daemon.broker
    with Gate(files, "fdatasync", path=tp.directory_name) as gate:
        stream = client.producer()
        stream.post([(tp, values_batch(tp))])
        gate.wait_until_reached()
        wait_until(lambda: len(broker.produce_purgatory) == 1)
        stream.cancel()
        wait_until(lambda: len(broker.produce_purgatory) == 0)
    wait_until(lambda: client.latest(tp) == 1)
    wait_until(lambda: (broker.in_flight.used, len(broker.produce_purgatory)) == (0, 0))


def test_an_unexpected_failure_is_opaque_and_the_broker_goes_on(
    running: RunningDaemon, client: RawClient, files: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    (tp,) = client.create_topic()
    stream = client.producer()

    def explode(operation: str, path: str) -> None:
        if operation == "pwritev" and "/" in path:
            raise ValueError("secret detail of the inside")

    files.hook = explode
    result = stream.produce(tp, values_batch(tp))
    files.hook = None
    assert ErrorCode(result.error.code) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert Fate(result.error.fate) is Fate.UNKNOWN
    assert "secret" not in result.error.message
    assert "secret detail" in caplog.text
    number = result.error.message.split()[2].rstrip(":")
    assert number in caplog.text
    assert not stream.produce(tp, values_batch(tp)).HasField("error")
