"""Clients that fetch and do not read: the memory that they hold stays within max.fetch.bytes.in.flight, and others can read."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from benchmarks.raw_http2 import RawHttp2
from brokerd.ids import TopicIdPartition
from brokerd.server.limits import response_budget
from brokerd.wire.methods import FETCH, PRODUCE, UNARY
from brokerd.wire.v1 import fetch_pb2, metadata_pb2, produce_pb2
from tests.integration.security.conftest import with_token
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.files import MemoryFiles
from tests.support.identities import TOKENS
from tests.support.raw_client import LONG_MS, RawClient, RawFetcher, values_batch
from tests.support.wait import DEADLINE_S, wait_until

LIMIT_BYTES = 8_388_608
BATCH_BYTES = 300_000
BATCHES = 60
SLOW = 40
# A few tests are about the time-out for reading a response; on a slow machine it must not end other clients.
LIMIT = {"max_fetch_bytes_in_flight": LIMIT_BYTES, "fetch_write_timeout_ms": 600_000}


def fill(client: RawClient, topic: str = "t") -> TopicIdPartition:
    (tp,) = client.create_topic(topic)
    stream = client.producer()
    for _ in range(BATCHES):
        stream.produce(tp, values_batch(tp, size=BATCH_BYTES))
    return tp


def ask(client: RawClient, tp: TopicIdPartition, count: int) -> list[RawFetcher]:
    """Streams that fetch everything."""
    fetchers = [client.fetcher() for _ in range(count)]
    for fetcher in fetchers:
        fetcher.post({tp: 0})
    return fetchers


def read_all(client: RawClient, tp: TopicIdPartition) -> int:
    """Reads the partition to its end; returns the number of responses."""
    fetcher = client.fetcher()
    offset = answers = 0
    while offset < BATCHES:
        _, (batches,) = fetcher.fetch({tp: offset})
        assert batches, "each response has a batch, however little is left"
        offset += len(batches)
        answers += 1
    return answers


@pytest.mark.parametrize("settings", [LIMIT], indirect=True)
def test_what_slow_readers_hold_is_bounded_and_others_read_on(running: RunningDaemon, client: RawClient) -> None:
    tp = fill(client)
    budget = running.daemon.broker.response_budget
    most_bytes = 0

    def is_scarce() -> bool:
        nonlocal most_bytes
        most_bytes = max(most_bytes, budget.used)
        return budget.waiting > 0

    with RawClient(running.address) as slow:
        fetchers = ask(slow, tp, SLOW)
        wait_until(is_scarce)
        assert read_all(client, tp) > 1
        is_scarce()
        assert most_bytes <= LIMIT_BYTES
        assert fetchers[0].status()[0] is grpc.StatusCode.UNAVAILABLE, "made room, and not by its own deadline"
    wait_until(lambda: budget.used == 0 and budget.waiting == 0)
    assert read_all(client, tp) < BATCHES


@pytest.mark.parametrize("has_principals", [True, False])
def test_one_who_fills_all_it_may_holds_nobody_else_up(
    tmp_path: Path, auth_file: Path, has_principals: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Principals share the limit; without principals, connections do. A client gets four fifths, and its further fetches wait for
    its own memory. No client has to be disconnected to make room.
    """
    monkeypatch.setattr(response_budget, "PATIENCE_MS", 600_000)
    settings: dict[str, Any] = dict(LIMIT)
    if has_principals:
        settings["auth_file"] = str(auth_file)
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), **settings) as running,
        with_token(running.address, TOKENS["boss"] if has_principals else None) as slow,
        with_token(running.address, TOKENS["reader"] if has_principals else None) as honest,
    ):
        tp = fill(slow, "events-1")
        budget = running.daemon.broker.response_budget
        ask(slow, tp, SLOW)
        wait_until(lambda: budget.waiting > 0 and budget.used > LIMIT_BYTES // 2)
        assert read_all(honest, tp) == BATCHES
        assert 0 < budget.waiting < SLOW
        wait_until(lambda: budget.used <= LIMIT_BYTES * 4 // 5)
        assert "does not read" not in caplog.text


@pytest.mark.parametrize("settings", [LIMIT], indirect=True)
def test_responses_without_records_count_too(running: RunningDaemon, client: RawClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 errors take a quarter of a megabyte, whatever the rights of those who ask."""
    monkeypatch.setattr(response_budget, "PATIENCE_MS", 600_000)
    tp = fill(client)
    asked = [fetch_pb2.PartitionFetch(topic_id=bytes(16), partition=partition) for partition in range(2_000)]
    request = fetch_pb2.FetchRequest(partitions=asked).SerializeToString()
    budget = running.daemon.broker.response_budget
    with closing(RawHttp2(running.daemon.port, window=0)) as slow:
        for _ in range(SLOW):
            slow.send_message(slow.call(FETCH), request)
            while slow.is_sending:
                slow.pump(DEADLINE_S)
        wait_until(lambda: budget.waiting > 0 and budget.used > LIMIT_BYTES // 2)
        assert budget.used <= LIMIT_BYTES * 4 // 5
        assert read_all(client, tp) == BATCHES
    wait_until(lambda: budget.used == 0 and budget.waiting == 0)


@pytest.mark.parametrize("settings", [LIMIT], indirect=True)
def test_queued_responses_to_a_producer_count_too(
    running: RunningDaemon, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_budget, "PATIENCE_MS", 600_000)
    tp = fill(client)
    asked = [produce_pb2.PartitionProduce(topic_id=bytes(16), partition=partition) for partition in range(2_000)]
    hello = produce_pb2.Hello(instance_id=bytes(16), incarnation=1)
    request = produce_pb2.ProduceRequest(acks=-1, partitions=asked, records=[b""] * len(asked))
    budget = running.daemon.broker.response_budget
    with closing(RawHttp2(running.daemon.port, window=0)) as slow:
        stream = slow.call(PRODUCE)
        slow.send_message(stream, produce_pb2.ProduceRequest(hello=hello).SerializeToString())
        for _ in range(SLOW):
            slow.send_message(stream, request.SerializeToString())
            while slow.is_sending and not budget.waiting:
                slow.pump(0.01)
            if budget.waiting:
                break
        wait_until(lambda: budget.waiting > 0)
        assert LIMIT_BYTES // 2 < budget.used <= LIMIT_BYTES
        assert read_all(client, tp) == BATCHES
        assert client.producer().produce(tp, values_batch(tp)).base_offset == BATCHES
    wait_until(lambda: budget.used == 0 and budget.waiting == 0)


@pytest.mark.parametrize("settings", [LIMIT], indirect=True)
def test_a_few_slow_readers_cost_others_the_size_of_answers_alone(running: RunningDaemon, client: RawClient) -> None:
    tp = fill(client)
    budget = running.daemon.broker.response_budget
    with RawClient(running.address) as slow:
        fetchers = ask(slow, tp, 5)
        wait_until(lambda: budget.used > LIMIT_BYTES // 4)
        assert read_all(client, tp) <= BATCHES
        offsets = [batches[0].header.base_offset for fetcher in fetchers for batches in fetcher.answer()[1]]
        assert offsets == [0] * 5, "nobody waited, so nobody was ended"


@pytest.mark.parametrize("settings", [{"shutdown_grace_ms": 600_000}], indirect=True)
def test_a_stop_tells_everybody_although_some_do_not_read(running: RunningDaemon, client: RawClient) -> None:
    with RawClient(running.address) as slow:
        parked = running.daemon.broker.fetch_purgatory
        (tp,) = client.create_topic()
        for fetcher in [slow.fetcher() for _ in range(30)]:
            fetcher.post({tp: 0}, max_wait_ms=LONG_MS, min_bytes=2 * BATCH_BYTES)
        wait_until(lambda: len(parked) == 30)
        producer = client.producer()
        for _ in range(4):
            producer.produce(tp, values_batch(tp, size=BATCH_BYTES))
        wait_until(lambda: len(parked) == 0 and running.daemon.broker.response_budget.used > 30 * BATCH_BYTES)
        waiting = [client.fetcher() for _ in range(3)]
        for fetcher in waiting:
            fetcher.post({tp: 4}, max_wait_ms=LONG_MS)
        wait_until(lambda: len(parked) == len(waiting))
        stopping = running.begin_stop()
        for fetcher in waiting:
            code, details = fetcher.status()
            assert code is grpc.StatusCode.UNAVAILABLE
            assert "the broker is stopping" in details
        assert not stopping.done(), "the others have not read yet"
    stopping.result(DEADLINE_S)


class Leaving:
    """A stream whose client leaves while the stream is ended: what it awaits is cancelled."""

    async def close(self, _code: grpc.StatusCode, _details: str) -> None:
        raise asyncio.CancelledError


def test_a_stop_goes_on_when_a_client_leaves_meanwhile(running: RunningDaemon) -> None:
    service: Any = running.daemon._service
    service._streams.add(Leaving())
    running.stop()
    assert running.daemon._logs is None, "closed cleanly"


@pytest.mark.parametrize("settings", [{"fetch_write_timeout_ms": 600_000}], indirect=True)
def test_one_that_does_not_read_for_too_long_is_ended(
    running: RunningDaemon, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    tp = fill(client)
    waiting = client.fetcher()
    waiting.post({tp: BATCHES}, max_wait_ms=LONG_MS)
    budget: Any = running.daemon.broker.response_budget
    with RawClient(running.address) as slow:
        (fetcher,) = ask(slow, tp, 1)
        wait_until(lambda: budget.used > 0)
        patient_ms, budget._write_timeout_ms = budget._write_timeout_ms, 100  # for nobody else: a machine may pause for longer
        wait_until(lambda: "does not read its responses" in caplog.text)
        wait_until(lambda: budget.used == 0)
        assert fetcher.status()[0] is grpc.StatusCode.UNAVAILABLE
    budget._write_timeout_ms = patient_ms
    client.producer().produce(tp, values_batch(tp))
    assert waiting.answer()[1][0][0].header.base_offset == BATCHES, "one that waits for data is not slow"


@pytest.mark.parametrize("settings", [{"fetch_write_timeout_ms": 100}], indirect=True)
def test_a_producer_that_does_not_read_for_too_long_is_ended(
    running: RunningDaemon, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    (tp,) = client.create_topic()
    stream = client.producer()
    with closing(RawHttp2(running.daemon.port, window=0)) as slow:
        slow.send_message(slow.call(PRODUCE), stream.request([(tp, values_batch(tp))]))
        stream.half_close()  # otherwise it is counted as well, until its deadline
        wait_until(lambda: running.daemon.broker.response_budget.used > 0, what="a response that is written")
        wait_until(lambda: "does not read its responses" in caplog.text)
        wait_until(lambda: running.daemon.open_stream_count == 0)
    assert running.daemon.broker.response_budget.used == 0
    assert client.producer().produce(tp, values_batch(tp)).base_offset == 1


NAMES = [f"{number}-{'n' * 200}" for number in range(2_000)]  # the response, an error for each, has a megabyte


def refused_count(running: RunningDaemon) -> float:
    count: float = running.daemon.broker.counters.request_errors.labels("Metadata", "RESOURCE_EXHAUSTED")._value.get()
    return count


def calls_not_read(port: int, count: int, *, token: str | None = None) -> RawHttp2:
    """A connection with calls whose responses it does not read."""
    request = metadata_pb2.MetadataRequest(topics=NAMES).SerializeToString()
    slow = RawHttp2(port, token=token, window=0)
    for _ in range(count):
        slow.send_message(slow.call(UNARY["Metadata"].path), request)
        while slow.is_sending and not slow.is_closed:
            slow.pump(DEADLINE_S)
    return slow


@pytest.mark.parametrize("settings", [{"fetch_write_timeout_ms": 100}], indirect=True)
def test_a_caller_that_does_not_read_for_too_long_is_ended(
    running: RunningDaemon, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(calls_not_read(running.daemon.port, 1)):
        wait_until(lambda: "does not read its responses" in caplog.text)
        wait_until(lambda: running.daemon.broker.response_budget.used == 0)
    assert len(client.metadata(*NAMES).topics) == len(NAMES)
    wait_until(lambda: running.daemon.broker.response_budget.used == 0)


def test_what_callers_do_not_read_is_bounded_and_others_are_answered(
    tmp_path: Path, auth_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a right is needed: a response names each topic that the caller may not see."""
    monkeypatch.setattr(response_budget, "PATIENCE_MS", 600_000)
    settings: dict[str, Any] = {**LIMIT, "auth_file": str(auth_file)}
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), **settings) as running,
        with_token(running.address, TOKENS["boss"]) as honest,
        closing(calls_not_read(running.daemon.port, SLOW, token=TOKENS["outsider"])),
    ):
        budget = running.daemon.broker.response_budget
        wait_until(lambda: budget.waiting > 0 and budget.used > LIMIT_BYTES // 2)
        wait_until(lambda: refused_count(running) > SLOW // 2)
        assert budget.used <= LIMIT_BYTES * 4 // 5
        assert budget.waiting * len("".join(NAMES)) <= LIMIT_BYTES, "what waits is in memory too"
        assert len(honest.metadata(*NAMES).topics) == len(NAMES)
