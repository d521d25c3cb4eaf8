"""Goal: the broker serves only requests with the partition's current leader epoch, and clients with older metadata survive a
restart, which raises the epoch. Method: raw requests to a restarted broker; clients that live through a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from brokerd import Consumer, Producer, TopicPartition
from brokerd.client.blocking import BlockingClient
from brokerd.client.broker_client import BrokerClient, CallRetries
from brokerd.client.fetching import FetchRange, PartitionFetcher
from brokerd.client.offsets import OffsetAndTimestamp, OffsetSpec
from brokerd.clock import SystemClock
from brokerd.config.client import ConsumerConfig
from brokerd.datasource.options import parse_source_options
from brokerd.datasource.stream_reader import BrokerdStreamReader
from brokerd.errors import BrokerdError, ErrorCode, Fate, OffsetNotAvailableError
from brokerd.ids import TopicIdPartition
from brokerd.partition.core import InSync
from brokerd.partition.partition import Partition
from brokerd.record.batch import RecordBatch
from brokerd.record.header import HEADER_SIZE, crc_seed, decode_header
from brokerd.testing import Broker
from brokerd.wire.v1 import error_pb2, offsets_pb2, transaction_pb2
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.raw_client import RawClient, idempotent_batch, values_batch
from tests.support.raw_transactions import Txn
from tests.support.records import stamped
from tests.support.wait import DEADLINE_S

QUICK = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 20, "reconnect.backoff.ms": 1}
TP = TopicPartition("t", 0)
OLDER, NEWER = "older", "newer"


class Restarted(NamedTuple):
    """A partition whose broker was restarted, and its current leader epoch."""

    client: RawClient
    tp: TopicIdPartition
    epoch: int
    node_id: int


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Restarted]:
    with running_daemon(tmp_path / "data") as running, RawClient(running.address) as client:
        (tp,) = client.create_topic()
        before = client.metadata("t").topics[0].partitions[0].leader_epoch
    with running_daemon(tmp_path / "data") as running, RawClient(running.address) as client:
        (topic,) = client.metadata("t").topics
        assert topic.partitions[0].leader_epoch > before
        yield Restarted(client, tp, topic.partitions[0].leader_epoch, topic.partitions[0].leader)


def check_refusal(restarted: Restarted, error: error_pb2.Error, asked: str) -> None:
    """Checks a refused epoch: a client that trusts the error needs no further metadata."""
    if asked == OLDER:
        assert ErrorCode(error.code) is ErrorCode.FENCED_LEADER_EPOCH
        assert error.current_leader == restarted.node_id
    else:
        assert ErrorCode(error.code) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert error.current_leader_epoch == restarted.epoch


@pytest.mark.parametrize(("asked", "distance"), [(OLDER, -1), (NEWER, 1)])
def test_another_epoch_is_refused(restarted: Restarted, asked: str, distance: int) -> None:
    client, tp = restarted.client, restarted.tp
    producer, fetcher = client.producer(), client.fetcher()
    producer.epoch_of = fetcher.epoch_of = lambda _tp: restarted.epoch + distance
    for batch in (values_batch(tp), idempotent_batch(tp, client.new_producer_id(), 0)):
        produced = producer.produce(tp, batch).error
        check_refusal(restarted, produced, asked)
        assert Fate(produced.fate) is Fate.NOT_APPENDED
    head, _ = fetcher.fetch({tp: 0})
    check_refusal(restarted, head.results[0].error, asked)
    check_refusal(restarted, list_latest(restarted, restarted.epoch + distance).error, asked)
    assert client.latest(tp) == 0


def list_latest(restarted: Restarted, epoch: int) -> offsets_pb2.PartitionListOffsetsResult:
    return restarted.client.list_offset(restarted.tp, offsets_pb2.OFFSET_SPEC_LATEST, current_leader_epoch=epoch)


@pytest.mark.parametrize("epoch", [-1, 0, -(2**31)])
def test_a_request_without_an_epoch_is_refused(restarted: Restarted, epoch: int) -> None:
    """As in Kafka, ListOffsets and producers without idempotence need no epoch."""
    client, tp = restarted.client, restarted.tp
    producer, fetcher = client.producer(), client.fetcher()
    producer.epoch_of = fetcher.epoch_of = lambda _tp: epoch
    refused = producer.produce(tp, idempotent_batch(tp, client.new_producer_id(), 0)).error
    head, _ = fetcher.fetch({tp: 0})
    for error in (refused, head.results[0].error):
        assert ErrorCode(error.code) is ErrorCode.INVALID_REQUEST
        assert f"partitions.current_leader_epoch is {epoch}, but" in error.message
        assert "leader_epoch from Metadata" in error.message
    assert Fate(refused.fate) is Fate.NOT_APPENDED
    assert not list_latest(restarted, epoch).HasField("error")
    assert producer.produce(tp, values_batch(tp)).base_offset == 0


def test_the_present_epoch_is_served(restarted: Restarted) -> None:
    client, tp = restarted.client, restarted.tp
    producer, fetcher = client.producer(), client.fetcher()
    producer.epoch_of = fetcher.epoch_of = lambda _tp: restarted.epoch
    assert producer.produce(tp, idempotent_batch(tp, client.new_producer_id(), 0)).base_offset == 0
    _, (batches,) = fetcher.fetch({tp: 0})
    assert [batch.header.leader_epoch for batch in batches] == [restarted.epoch]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("t", 1)
        yield broker


@pytest.mark.parametrize(
    ("is_killed", "settings"),
    [(True, {}), (False, {"enable.idempotence": False, "acks": "1"})],
    ids=["idempotent, killed", "plain, stopped"],
)
def test_clients_with_old_metadata_ride_over_restarts(broker: Broker, *, is_killed: bool, settings: dict[str, Any]) -> None:
    """The user sees no error, and each record is read once."""
    servers = {"bootstrap.servers": broker.bootstrap_servers, **QUICK}
    with (
        Producer({**servers, **settings}) as producer,
        Consumer({**servers, "auto.offset.reset": "earliest"}) as consumer,
        Producer({**servers, "transactional.id": "x"}) as transactional,
    ):
        consumer.assign([TP])
        read: list[bytes | None] = []
        for life in range(3):
            if life:
                if is_killed:
                    broker.kill()
                broker.restart()
            producer.send("t", value=b"plain %d" % life).result(DEADLINE_S)
            with transactional.transaction():
                transactional.send("t", value=b"transactional %d" % life)
            while len(read) < 2 * (life + 1):
                read += [record.value for record in consumer.poll(int(DEADLINE_S * 1_000))]
        assert read == [b"%b %d" % (kind, life) for life in range(3) for kind in (b"plain", b"transactional")]


def test_a_task_with_old_metadata_refreshes_it_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a Spark Python worker that keeps its client, and did not notice the restart."""
    with BlockingClient(ConsumerConfig(bootstrap_servers=broker.bootstrap_servers, retry_backoff_ms=1)) as client:
        tp = TopicIdPartition(client.metadata(["t"]).topic("t").topic_id, 0)
        with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            producer.send("t", value=b"x").result(DEADLINE_S)
        broker.restart()
        client.server_info()  # reconnects
        asked: list[object] = []
        metadata_by_id = client.broker_client.metadata_by_id

        def counting(topic_ids: Any) -> Any:
            asked.append(topic_ids)
            return metadata_by_id(topic_ids)

        monkeypatch.setattr(client.broker_client, "metadata_by_id", counting)
        with PartitionFetcher(client, [FetchRange(tp, 0, 1)], ConsumerConfig()) as fetcher:
            assert [batch.arrow_batch.num_rows for batch in fetcher] == [1]
        assert len(asked) == 1
        assert isinstance(client.list_offsets({tp: OffsetSpec.LATEST})[tp], OffsetAndTimestamp)
        assert len(asked) == 1, "the epoch is known by now"


class Elected(NamedTuple):
    """A partition with three visible records, whose new leader does not know yet that a fourth was acknowledged."""

    running: RunningDaemon
    client: RawClient
    partition: Partition

    def hear_of_the_replica(self) -> None:
        """The other in-sync replica reports that it has all four records."""

        async def report() -> None:
            self.partition.wake(self.partition.ends.replica_at(7, 4))

        self.running.run(report())


@pytest.fixture
def elected(tmp_path: Path) -> Iterator[Elected]:
    with running_daemon(tmp_path / "data") as running, RawClient(running.address) as client:
        (tp,) = client.create_topic()
        client.producer().produce(tp, values_batch(tp, 3))
        partition = running.daemon.broker.partitions.leader(tp)

        async def fail_over() -> None:
            epoch = partition.leader_epoch
            partition.follow(epoch + 1)
            data = values_batch(tp)
            now_ms = running.daemon.broker.clock.wall_ms()
            head = data.slice(0, HEADER_SIZE).to_pybytes()
            header = stamped(head, crc_seed(tp), base_offset=3, append_timestamp=now_ms, leader_epoch=epoch + 1)
            whole = pa.py_buffer(header + data.slice(HEADER_SIZE).to_pybytes())
            partition.append_as_follower(RecordBatch(decode_header(header), whole))
            partition.lead(epoch + 2, InSync([7], 2, 2))

        running.run(fail_over())
        assert (partition.ends.high_watermark, partition.ends.log_end_offset) == (3, 4)
        yield Elected(running, client, partition)


def test_a_new_leader_names_no_end_before_it_knows_it(elected: Elected) -> None:
    """It would return an end from before the election, below acknowledged records."""
    tp, client = elected.partition.tp, elected.client

    def code(spec: offsets_pb2.OffsetSpec, **fields: Any) -> ErrorCode:
        return ErrorCode(client.list_offset(tp, spec, **fields).error.code)

    def commit(offset: int) -> ErrorCode:
        entry = offsets_pb2.PartitionGroupOffset(topic_id=tp.topic_id, offset=offset)
        request = offsets_pb2.CommitGroupOffsetsRequest(group_id="g", offsets=[entry])
        return ErrorCode(client.call("CommitGroupOffsets", request).results[0].error.code)

    def delete(before_offset: int) -> ErrorCode:
        return ErrorCode(client.delete_records(tp, before_offset).error.code)

    assert commit(1) is ErrorCode.NONE
    (lag,) = client.call("DescribeGroup", offsets_pb2.DescribeGroupRequest(group_id="g")).partitions
    refused = [
        code(offsets_pb2.OFFSET_SPEC_LATEST),
        code(offsets_pb2.OFFSET_SPEC_TIMESTAMP),
        code(offsets_pb2.OFFSET_SPEC_AFTER_BYTES, until_offset=9, max_bytes=1),
        code(offsets_pb2.OFFSET_SPEC_LAST_RECORDS, record_count=1),
        code(offsets_pb2.OFFSET_SPEC_BACKLOG),
        delete(4),
        delete(-1),
        ErrorCode(lag.committed.error.code),
    ]
    assert refused == [ErrorCode.OFFSET_NOT_AVAILABLE] * len(refused)
    assert code(offsets_pb2.OFFSET_SPEC_EARLIEST) is ErrorCode.NONE
    assert code(offsets_pb2.OFFSET_SPEC_GIVEN, from_offset=4) is ErrorCode.NONE
    assert delete(1) is ErrorCode.NONE, "that is below what it knows"
    assert commit(4) is ErrorCode.NONE, "the leader before may have shown it"
    assert commit(5) is ErrorCode.OFFSET_OUT_OF_RANGE
    elected.hear_of_the_replica()
    assert client.latest(tp) == 4
    assert delete(5) is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("has_read_all", [True, False])
def test_a_source_waits_until_a_new_leader_knows_the_end(
    elected: Elected, monkeypatch: pytest.MonkeyPatch, *, has_read_all: bool
) -> None:
    """Otherwise a query that had read all would report a loss, and one with Trigger.AvailableNow would leave records unread."""
    waiting = threading.Event()
    retry_wait_ms = BrokerClient.retry_wait_ms

    def noticed(self: BrokerClient, retries: CallRetries, error: BrokerdError) -> int:
        assert isinstance(error, OffsetNotAvailableError)
        waiting.set()
        return retry_wait_ms(self, retries, error)

    monkeypatch.setattr(BrokerClient, "retry_wait_ms", noticed)
    options = {"bootstrap.servers": elected.running.address, "subscribe": "t", "startingOffsets": "earliest"}
    reader = BrokerdStreamReader(parse_source_options(options, is_streaming=True), pa.schema([]), SystemClock())
    start = {**reader.initialOffset(), "t": {"0": 4}} if has_read_all else reader.initialOffset()
    with ThreadPoolExecutor(1) as pool:
        planned = pool.submit(reader.latestOffset, start, ReadAllAvailable())
        assert waiting.wait(DEADLINE_S)
        elected.hear_of_the_replica()
        assert planned.result(DEADLINE_S)["t"] == {"0": 4}


@pytest.mark.parametrize("is_current", [True, False])
def test_only_who_leads_by_the_stores_word_says_that_records_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_current: bool
) -> None:
    """A leader that was deposed unawares lacks records that others have."""
    refused = ErrorCode.OFFSET_OUT_OF_RANGE if is_current else ErrorCode.NOT_LEADER
    with running_daemon(tmp_path / "data") as running, RawClient(running.address) as client:
        (tp,) = client.create_topic()
        client.producer().produce(tp, values_batch(tp, 3))
        client.delete_records(tp, 1)

        async def is_confirmed_leader(_tp: TopicIdPartition, _epoch: int) -> bool:
            return is_current

        monkeypatch.setattr(running.daemon.broker.cluster, "is_confirmed_leader", is_confirmed_leader)
        fetcher = client.fetcher()
        for offset, code in ((0, ErrorCode.OFFSET_OUT_OF_RANGE), (4, refused)):  # records below the log start are gone everywhere
            assert ErrorCode(fetcher.fetch({tp: offset})[0].results[0].error.code) is code
        result = client.list_offset(tp, offsets_pb2.OFFSET_SPEC_LATEST, position={"offset": 2, "leader_epoch_id": 7})
        assert result.HasField("truncation") == is_current
        assert result.HasField("error") != is_current
        assert is_current or ErrorCode(result.error.code) is ErrorCode.NOT_LEADER


@pytest.mark.parametrize("is_current", [True, False])
def test_only_who_leads_by_the_stores_word_refuses_an_offset_of_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_current: bool
) -> None:
    """A coordinator that was just deposed as the partition's leader lacks records that its successor has shown, so the reader's
    offset is right. If the store does not respond, it is asked once for a commit, not once for each partition."""
    with running_daemon(tmp_path / "data") as running, RawClient(running.address) as client:
        (tp, *_) = client.create_topic(partitions=3)
        client.producer().produce(tp, values_batch(tp, 3))
        asked_of = list[int]()

        async def is_confirmed_leader(tp: TopicIdPartition, _epoch: int) -> bool:
            asked_of.append(tp.partition)
            return is_current

        monkeypatch.setattr(running.daemon.broker.cluster, "is_confirmed_leader", is_confirmed_leader)

        def commit(offset: int, leader_epoch_id: int) -> ErrorCode:
            entries = [
                offsets_pb2.PartitionGroupOffset(
                    topic_id=tp.topic_id, partition=number, offset=offset, leader_epoch_id=leader_epoch_id
                )
                for number in range(3)
            ]
            asked_of.clear()
            request = offsets_pb2.CommitGroupOffsetsRequest(group_id="g", offsets=entries)
            (first, *_) = client.call("CommitGroupOffsets", request).results
            assert asked_of == ([0, 1, 2] if is_current else [0])
            return ErrorCode(first.error.code)

        refused = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.LOG_TRUNCATION) if is_current else (ErrorCode.NONE, ErrorCode.NONE)
        assert (commit(4, 0), commit(4, 7)) == refused
        asked = offsets_pb2.FetchGroupOffsetsRequest(
            group_id="g", partitions=[offsets_pb2.PartitionGroupOffset(topic_id=tp.topic_id)]
        )
        (found,) = client.call("FetchGroupOffsets", asked).results
        assert (found.offset, found.HasField("error")) == (-1 if is_current else 4, False)


@pytest.mark.parametrize("is_current", [True, False])
def test_a_transaction_s_offsets_are_refused_by_who_leads_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_current: bool
) -> None:
    with running_daemon(tmp_path / "data") as running, RawClient(running.address) as client:
        (tp,) = client.create_topic()

        async def is_confirmed_leader(_tp: TopicIdPartition, _epoch: int) -> bool:
            return is_current

        monkeypatch.setattr(running.daemon.broker.cluster, "is_confirmed_leader", is_confirmed_leader)
        txn = Txn(client)
        txn.member().send(tp, b"row")
        beyond = transaction_pb2.TransactionGroupOffset(topic_id=tp.topic_id, offset=9, expected_offset=-1)
        error = txn.end(group_id="g", group_offsets=[beyond]).error
        assert ErrorCode(error.code) is (ErrorCode.OFFSET_OUT_OF_RANGE if is_current else ErrorCode.NONE)
