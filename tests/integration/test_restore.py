"""Goal: after a restore from a copy, no reader takes an offset of the lost history for one of the restored log. Method: a daemon
process whose data directory is copied, written to and restored; consumers that live through that, and their group's offsets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from brokerd import Consumer, Producer, TopicPartition
from brokerd.arguments import OffsetAndMetadata
from brokerd.client.blocking import BlockingClient
from brokerd.client.offsets import OffsetSpec
from brokerd.client.response_checks import error_in
from brokerd.clock import SystemClock
from brokerd.config.client import ClientConfig
from brokerd.datasource.offsets import INITIAL
from brokerd.datasource.options import parse_source_options
from brokerd.datasource.planning import RangePartition
from brokerd.datasource.stream_reader import BrokerdStreamReader
from brokerd.errors import DataLossError, LogTruncationError
from brokerd.ids import TopicIdPartition
from tests.integration.conftest import Terminal
from tests.support.daemon import running_daemon
from tests.support.group_offsets import committed
from tests.support.restored import Restored
from tests.support.wait import DEADLINE_S

LONG_MS = int(DEADLINE_S * 1000)
TP = TopicPartition("t", 0)
QUICK = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 20, "reconnect.backoff.ms": 1}
READER = {"group.id": "g", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
BACKED_UP, LOST, NEW = 100, 100, 150


@pytest.fixture
def restored(tmp_path: Path) -> Iterator[Restored]:
    one = Restored(tmp_path)
    yield one
    one.daemon.kill()


def settings(restored: Restored, **others: object) -> dict[str, object]:
    return {"bootstrap.servers": restored.daemon.address, **QUICK, **others}


def read(consumer: Consumer, until: int) -> list[int]:
    """Offsets of records up to a position."""
    offsets: list[int] = []
    while consumer.position(TP) < until:
        offsets += [record.offset for record in consumer.poll(LONG_MS, 1_000)]
    return offsets


def until_one_arrives(restored: Restored, producer: Producer) -> None:
    """Sends until the topic has a record."""
    with BlockingClient(ClientConfig(bootstrap_servers=restored.daemon.address)) as client:
        tp = TopicIdPartition(client.metadata(["t"]).topic("t").topic_id, 0)
        deadline = time.monotonic() + DEADLINE_S
        while client.list_offsets({tp: OffsetSpec.LATEST})[tp].offset == 0:  # type: ignore[union-attr]
            assert time.monotonic() < deadline, "no record arrives"
            producer.send("t", value=b"x")
            producer.flush(DEADLINE_S)


@pytest.mark.parametrize(
    ("is_running", "written"), [(True, NEW), (False, 20)], ids=["same epoch, past the position", "stopped, short of it"]
)
def test_a_position_of_the_lost_history_is_refused(restored: Restored, *, is_running: bool, written: int) -> None:
    """A read, a commit or a transaction with that position is refused, whether or not new records have reached it."""
    restored.write(BACKED_UP)
    with Consumer(settings(restored, **READER)) as consumer, Consumer(settings(restored, **READER)) as idle:
        consumer.assign([TP])
        read(consumer, BACKED_UP)
        consumer.commit()
        restored.back_up(is_running=is_running)
        restored.write(LOST)
        assert read(consumer, BACKED_UP + LOST) == list(range(BACKED_UP, BACKED_UP + LOST))
        consumer.commit()
        stored = consumer.committed(TP)[TP]
        assert stored is not None
        idle.assign([TP])
        idle.poll(0)
        assert idle.position(TP) == BACKED_UP + LOST
        restored.restore()
        restored.write(written)
        for one in (consumer, idle):
            for _ in range(2):
                with pytest.raises(LogTruncationError, match=r"t-0: offset 200 is of another history .*seek\(\)") as caught:
                    one.poll(LONG_MS)
                assert caught.value.resume_offset == (BACKED_UP if is_running else -1)
        for offsets in (None, {TP: stored}, {TP: BACKED_UP + 5}):
            with pytest.raises(LogTruncationError, match="the offset of t-0 is not committed: t-0: offset "):
                consumer.commit(offsets)
        with Producer(settings(restored, **{"transactional.id": "x"})) as producer:
            transaction = producer.transaction()
            with pytest.raises(LogTruncationError), transaction:  # noqa: PT012 (the commit is at its end)
                producer.send("out", value=b"never seen")
                transaction.send_offsets({TP: BACKED_UP + LOST}, consumer)
        consumer.seek(TP, BACKED_UP)
        assert read(consumer, BACKED_UP + written) == list(range(BACKED_UP, BACKED_UP + written))
        consumer.commit()


def test_a_producer_without_acknowledgements_writes_to_the_copy(restored: Restored) -> None:
    """The producer cannot learn that the copy's leader epoch is lower than the one that it knows, so its batches name none."""
    restored.back_up(is_running=False)
    for _ in range(2):  # raises the epoch above the copy's
        restored.daemon.terminate()
        restored.daemon.restart()
    with Producer(settings(restored, acks="0", **{"enable.idempotence": False})) as producer:
        until_one_arrives(restored, producer)
        restored.restore()
        until_one_arrives(restored, producer)


def test_a_group_goes_on_where_the_copy_has_it(restored: Restored) -> None:
    """Its offsets are restored with the records: nothing is skipped, and no action is needed."""
    restored.write(BACKED_UP)
    with Consumer(settings(restored, **READER)) as consumer:
        consumer.assign([TP])
        read(consumer, BACKED_UP)
        consumer.commit()
        restored.back_up(is_running=False)
        restored.write(LOST)
        read(consumer, BACKED_UP + LOST)
        consumer.commit()
    restored.restore()
    restored.write(NEW)
    with Consumer(settings(restored, **READER)) as consumer:
        consumer.assign([TP])
        assert read(consumer, BACKED_UP + NEW) == list(range(BACKED_UP, BACKED_UP + NEW))


def test_a_commit_that_claims_no_history_gets_that_of_the_log(restored: Restored) -> None:
    """From then on a plain offset is protected."""
    restored.write(BACKED_UP)
    restored.back_up(is_running=True)
    restored.write(LOST)
    with BlockingClient(ClientConfig(bootstrap_servers=restored.daemon.address)) as client:
        tp = TopicIdPartition(client.metadata(["t"]).topic("t").topic_id, 0)
        assert client.commit_group_offsets("g", {tp: OffsetAndMetadata(BACKED_UP + LOST)}) == {}
        kept = client.group_offsets("g", [tp])[tp]
        assert isinstance(kept, OffsetAndMetadata)
        assert kept.leader_epoch_id
    restored.restore()
    restored.write(NEW)
    with BlockingClient(ClientConfig(bootstrap_servers=restored.daemon.address)) as client:
        refused = client.commit_group_offsets("g", {tp: kept})
        assert isinstance(refused[tp], LogTruncationError)
        assert "they diverge at offset 100, and the log ends at 250" in refused[tp].message
        assert client.commit_group_offsets("g", {tp: OffsetAndMetadata(kept.offset)}) == {}


def test_a_group_of_another_history_says_so_until_it_is_reset(tmp_path: Path, terminal: Terminal) -> None:
    """As after a copy whose files are from different moments: the coordinator's log is ahead of the records."""
    with running_daemon(tmp_path / "data") as running:
        address = running.address
        with BlockingClient(ClientConfig(bootstrap_servers=address)) as client:
            tp = TopicIdPartition(client.create_topic("t", 1), 0)
            with Producer({"bootstrap.servers": address}) as producer:
                producer.send("t", value=b"x").result(DEADLINE_S)
            ahead = committed(tp, 1, 1, leader_epoch_id=7)
            running.run(running.daemon.broker.groups.commit("g", "anonymous", [ahead]))
            assert isinstance(client.group_offsets("g", [tp])[tp], LogTruncationError)
            as_group = {"startingOffsets": "committed", "group.id": "g"}
            with pytest.raises(DataLossError, match=r"t-0: offset 1 is of another history .* set option failOnDataLoss=false"):
                stream_reader(address, **as_group).latestOffset(INITIAL.to_json(), ReadAllAvailable())
            lenient = stream_reader(address, failOnDataLoss="false", **as_group)
            assert lenient.latestOffset(INITIAL.to_json(), ReadAllAvailable())["@brokerd"]["starts"] == {"t": {"0": 0}}
            (described,) = client.describe_group("g").partitions
            assert isinstance(error_in(described.committed), LogTruncationError)
            terminal.use(address)
            code, _, err = terminal.run("groups", "reset", "g", "--topic", "t", "--shift-by", "-1")
            assert (code, "offset 1 is of another history" in err) == (1, True), err
            with Consumer({"bootstrap.servers": address, **QUICK, "group.id": "g", "auto.offset.reset": "latest"}) as reader:
                reader.assign([TP])
                with pytest.raises(LogTruncationError, match=r"^t-0: offset 1 is of another history .* `brokerd groups reset`"):
                    reader.poll(LONG_MS)
                reader.commit({TP: 0})
                assert [record.offset for record in reader.poll(LONG_MS)] == [0]


def stream_reader(address: str, **options: str) -> BrokerdStreamReader:
    given = {"bootstrap.servers": address, "subscribe": "t", "startingOffsets": "earliest", **options}
    return BrokerdStreamReader(parse_source_options(given, is_streaming=True), pa.schema([]), SystemClock())


def test_each_offset_of_a_checkpoint_has_the_epoch_of_the_record_before_it(tmp_path: Path) -> None:
    """For any limit of a batch, and over several lives of the broker."""
    ids: list[int] = []
    for _ in range(3):
        with running_daemon(tmp_path / "data") as running:
            if not ids:
                with BlockingClient(ClientConfig(bootstrap_servers=running.address)) as client:
                    client.create_topic("t", 1)
            with Producer({"bootstrap.servers": running.address}) as producer:
                for _ in range(10):
                    producer.send("t", value=b"x")
            ids += 10 * [running.daemon.broker.partitions.of_clients()[0].core.leader_epoch_id]
    assert len(set(ids)) == 3
    with running_daemon(tmp_path / "data") as running:
        reader = stream_reader(running.address, maxOffsetsPerTrigger="7")
        offset, ends = reader.initialOffset(), []
        for _ in range(5):
            offset = reader.latestOffset(offset, reader.getDefaultReadLimit())
            ends.append(offset["t"]["0"])
            assert offset["@brokerd"]["epochs"] == {"t": {"0": f"{ids[ends[-1] - 1]:08x}"}}
        assert ends == [7, 14, 21, 28, 30]
        assert reader.latestOffset(offset, ReadAllAvailable()) == offset


def test_a_query_that_runs_on_over_a_restore_says_so(restored: Restored) -> None:
    """The query keeps its connections and its state; only the broker has changed."""
    restored.write(BACKED_UP)
    restored.back_up(is_running=True)
    restored.write(LOST)
    reader, lenient = (stream_reader(restored.daemon.address, failOnDataLoss=flag) for flag in ("true", "false"))
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert start["t"] == {"0": 200}
    restored.restore()
    restored.write(NEW)
    with pytest.raises(DataLossError, match=r"t-0: offset 200 is of another history .* they diverge at offset 100, "):
        reader.latestOffset(start, ReadAllAvailable())
    end = lenient.latestOffset(start, ReadAllAvailable())
    (batch,) = lenient.partitions(start, end)
    assert isinstance(batch, RangePartition)
    assert (batch.ranges[0].start_offset, batch.ranges[0].until_offset) == (BACKED_UP, BACKED_UP + NEW)
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_what_a_time_cuts_off_is_that_of_the_restored_log(restored: Restored) -> None:
    """The query had not read the first record of that time: it has lost nothing, and no error reports the restore."""
    before_ms, wanted_ms = 1_577_836_800_000, 1_735_689_600_000  # 2020 and 2025
    restored.write(BACKED_UP, timestamp=before_ms)
    restored.back_up(is_running=True)
    restored.write(LOST // 2, timestamp=before_ms)
    restored.write(LOST // 2, timestamp=wanted_ms)
    reader = stream_reader(restored.daemon.address, where="timestamp >= '2025-01-01 00:00:00Z'", maxOffsetsPerTrigger="80")
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert reader.partitions(reader.initialOffset(), start) == []
    restored.restore()
    restored.write(NEW, timestamp=wanted_ms)
    end = reader.latestOffset(start, ReadAllAvailable())
    (batch,) = reader.partitions(start, end)
    assert isinstance(batch, RangePartition)
    assert (batch.ranges[0].start_offset, batch.ranges[0].until_offset) == (BACKED_UP, BACKED_UP + NEW)
