"""The ranges of a task: exact schema, order, slices, headers, and records that are gone or damaged."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from brokerd.client.fetching import FetchRange, Pump, RangePosition
from brokerd.client.leases import lease_client
from brokerd.datasource.partition_reader import BYTES_PER_BATCH, ROWS_PER_BATCH, _fetched, read_partition
from brokerd.datasource.planning import RangePartition
from brokerd.datasource.schema import arrow_schema, source_schema
from brokerd.errors import DataLossError, LogDamagedError, OffsetOutOfRangeError, TopicAuthorizationFailedError
from brokerd.record.control import encode_control
from brokerd.wire.v1.control_pb2 import ControlRecord
from tests.support.consumers import fill
from tests.support.fake_broker import FakeBroker, Partition
from tests.support.logged import messages_of
from tests.support.records import TIMESTAMP_MS, key_values, new_batch
from tests.support.wait import DEADLINE_S
from tests.unit.datasource.reading import ALL_COLUMNS, options_for, table_of


def read(
    broker: FakeBroker,
    partition: Partition,
    start: int,
    until: int,
    schema: pa.Schema = ALL_COLUMNS,
    **options: Any,
) -> list[pa.RecordBatch]:
    wanted = RangePartition([FetchRange(partition.tp, start, until, "events")])
    return list(read_partition(wanted, options_for(broker, is_streaming=True, **options), schema))


def test_rows_come_in_offset_order_in_sparks_schema(broker: FakeBroker) -> None:
    partition = broker.create("events", 2)[1]
    fill(partition, [3, 1, 5])
    batches = read(broker, partition, 2, 8)
    assert all(batch.schema.equals(ALL_COLUMNS) for batch in batches)
    rows = table_of(batches)
    assert rows["offset"] == [2, 3, 4, 5, 6, 7]
    assert rows["value"] == [b"2", b"3", b"4", b"5", b"6", b"7"]
    assert rows["key"] == [None] * 6
    assert (set(rows["topic"]), set(rows["partition"]), set(rows["timestampType"])) == ({"events"}, {1}, {0})
    assert rows["timestamp"][0].timestamp() * 1000 == TIMESTAMP_MS + 2


def test_the_log_says_what_was_read(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    (partition,) = broker.create("events")
    fill(partition, [3, 1, 5])
    with caplog.at_level(logging.INFO):
        read(broker, partition, 1, 4)
    size_bytes = sum(data.size for _, _, data in partition.batches[:2])
    assert f"events-0 [1, 4): {size_bytes} bytes of record batches were read" in caplog.text


def test_log_append_time_is_told_apart(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    fill(partition, [2], is_log_append_time=True)
    rows = table_of(read(broker, partition, 0, 2))
    assert rows["timestampType"] == [1, 1]
    assert [stamp.timestamp() * 1000 for stamp in rows["timestamp"]] == [1_800_000_000_000] * 2


def test_columns_left_out_by_a_users_schema_are_not_made(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    fill(partition, [2])
    (batch,) = read(broker, partition, 0, 2, arrow_schema([("offset", "bigint", False), ("value", "binary", True)]))
    assert batch.to_pydict() == {"offset": [0, 1], "value": [b"0", b"1"]}
    assert not batch.schema.field("offset").nullable


def test_a_record_without_headers_has_null_however_it_was_written(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    given = key_values([b"a", b"b", b"c"], headers=[None, [("h", b"1"), ("h", None)], []])
    partition.put(new_batch(given, tp=partition.tp))
    fill(partition, [2])
    rows = table_of(read(broker, partition, 0, 5, source_schema(include_headers=True)))
    assert rows["headers"] == [None, [{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, None, None]


def test_large_batches_are_cut_into_slices_that_spark_takes_well(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    fill(partition, [2 * ROWS_PER_BATCH + 1])
    sizes = [batch.num_rows for batch in read(broker, partition, 0, 2 * ROWS_PER_BATCH + 1)]
    assert sizes == [ROWS_PER_BATCH, ROWS_PER_BATCH, 1]


def test_wide_rows_are_cut_by_bytes(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    fill(partition, [100], value_bytes=100_000)
    batches = read(broker, partition, 0, 100)
    assert table_of(batches)["offset"] == list(range(100))
    assert all(batch.nbytes <= 1.1 * BYTES_PER_BATCH for batch in batches)
    assert len(batches) == 3


def test_small_batches_are_put_together(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    fill(partition, [10] * 50)
    batches = read(broker, partition, 5, 495)
    assert table_of(batches)["offset"] == list(range(5, 495))
    assert table_of(batches)["value"] == [b"%d" % offset for offset in range(5, 495)]
    assert len(batches) < 10


def test_small_and_large_batches_keep_their_order(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    fill(partition, [10, 10, 3000, 10, 5000, 10])
    batches = read(broker, partition, 0, 8040)
    assert table_of(batches)["offset"] == list(range(8040))
    assert [batch.num_rows for batch in batches] == [20, 3000, 10, 5000, 10]


def test_retention_that_passes_a_range_fails_with_numbers(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    fill(partition, [5, 5])
    partition.log_start_offset = 7
    with pytest.raises(DataLossError, match=r"5 records of events-0 are gone, offsets 2 to 6: .* the next offset is 7") as caught:
        read(broker, partition, 2, 10)
    assert "failOnDataLoss=false" in str(caught.value)


def test_retention_after_a_batch_was_planned_says_that_it_is_planned_once(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    fill(partition, [5, 5])
    partition.log_start_offset = 7
    wanted = RangePartition([FetchRange(partition.tp, 0, 10, "events")])
    with pytest.raises(DataLossError, match=r"the next offset is 7\. A batch DataFrame keeps the offsets .*: load\(\) it again"):
        list(read_partition(wanted, options_for(broker, is_streaming=False), ALL_COLUMNS))
    with pytest.raises(DataLossError) as streaming:
        read(broker, partition, 0, 10)
    assert "load()" not in str(streaming.value)


def test_without_fail_on_data_loss_what_is_left_is_read_and_told(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    (partition,) = broker.create("events")
    fill(partition, [5, 5])
    partition.log_start_offset = 7
    with caplog.at_level(logging.WARNING):
        assert table_of(read(broker, partition, 2, 10, failOnDataLoss="false"))["offset"] == [7, 8, 9]
    assert "5 records of events-0 are gone" in caplog.text
    partition.log_start_offset = 10
    assert read(broker, partition, 2, 9, failOnDataLoss="false") == []


def test_retention_in_the_middle_of_a_range_loses_only_what_was_not_read(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    (partition,) = broker.create("events")
    fill(partition, [3000] * 20)
    wanted = RangePartition([FetchRange(partition.tp, 0, 60_000, "events")])
    options = options_for(broker, is_streaming=True, failOnDataLoss="false", **{"max.partition.fetch.bytes": 1})
    reading = read_partition(wanted, options, ALL_COLUMNS)
    offsets = next(reading).column("offset").to_pylist()
    partition.log_start_offset = 59_000
    with caplog.at_level(logging.WARNING):
        for batch in reading:
            offsets += batch.column("offset").to_pylist()
    read_before = offsets.index(59_000)
    assert offsets == [*range(read_before), *range(59_000, 60_000)]
    assert 3000 <= read_before < 59_000
    assert f"{59_000 - read_before} records of events-0 are gone, offsets {read_before} to 58999" in caplog.text


def test_a_deleted_topic_is_data_loss_and_never_another_topics_rows(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    fill(partition, [5])
    (other,) = broker.create("events")
    fill(other, [50])
    with pytest.raises(DataLossError, match="was deleted, and perhaps recreated: offsets 1 to 4 of events-0 were not read"):
        read(broker, partition, 1, 5)
    assert read(broker, partition, 1, 5, failOnDataLoss="false") == []


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_topic_that_may_not_be_seen_any_more_is_no_data_loss(broker: FakeBroker, fail_on_data_loss: str) -> None:
    (partition,) = broker.create("events")
    fill(partition, [5])
    del broker.topics["events"]
    broker.forbidden.add("events")
    with pytest.raises(TopicAuthorizationFailedError, match="topic 'events' is not for you"):
        read(broker, partition, 1, 5, failOnDataLoss=fail_on_data_loss)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer to a fetch counts as seven seconds, so the reader soon gives up without any shorter deadline of its calls."""
    check = Pump._check_progress

    def checked(pump: Pump, positions: Sequence[RangePosition], now_ms: int, *, has_arrived: bool) -> None:
        pump._progress_ms -= 7_000
        check(pump, positions, now_ms, has_arrived=has_arrived)

    monkeypatch.setattr(Pump, "_check_progress", checked)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("start", "rows"), [(7, []), (3, [3, 4])])
def test_a_log_that_has_lost_its_tail_ends_a_range(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, start: int, rows: list[int]
) -> None:
    (partition,) = broker.create("events")
    fill(partition, [5])
    short = {"fetch.max.wait.ms": 10}
    loss = f"events-0 ends at offset 5, but offsets {max(start, 5)} to 8 were to be read: the log has lost its tail"
    with pytest.raises(DataLossError, match=loss):
        read(broker, partition, start, 9, **short)
    assert table_of(read(broker, partition, start, 9, failOnDataLoss="false", **short)).get("offset", []) == rows
    assert loss in caplog.text


@pytest.mark.usefixtures("hasty")
def test_what_an_open_transaction_holds_back_is_no_loss(broker: FakeBroker) -> None:
    (partition,) = broker.create("events")
    fill(partition, [5, 5])
    partition.last_stable_offset = 5
    with pytest.raises(OffsetOutOfRangeError, match="the range to read ends at 9, but it can be read up to 5"):
        read(broker, partition, 3, 9, failOnDataLoss="false", **{"fetch.max.wait.ms": 10})


def test_the_partition_that_spark_invents_for_nothing_holds_nothing(broker: FakeBroker) -> None:
    options = options_for(broker, is_streaming=False)
    assert list(read_partition(InputPartition(None), options, ALL_COLUMNS)) == []


@pytest.mark.parametrize("is_streaming", [True, False])
@pytest.mark.parametrize("option", [{"failOnDataLoss": "false"}, {"skip.corrupt.batches": "true"}])
def test_damage_is_gone_past_by_either_option(
    broker: FakeBroker, option: dict[str, str], is_streaming: bool, caplog: pytest.LogCaptureFixture
) -> None:
    (partition,) = broker.create("events")
    fill(partition, [5, 5])
    wanted = RangePartition([FetchRange(partition.tp, 1, 9, "events")])
    for resume_offset, left in ((7, [7, 8]), (2**63 - 1, [])):
        broker.errors["Fetch"] = [LogDamagedError("rotten", resume_offset=resume_offset)]
        caplog.clear()
        batches = list(read_partition(wanted, options_for(broker, is_streaming=is_streaming, **option), ALL_COLUMNS))
        assert table_of(batches).get("offset", []) == left
        skipped = messages_of(caplog, "brokerd.client.fetching")
        assert skipped == [f"events-0: offsets 1 to {min(resume_offset, 9) - 1} are skipped: rotten"]


@pytest.mark.parametrize("is_streaming", [True, False])
def test_damage_ends_the_query_unless_asked_or_where_nobody_knows_its_end(broker: FakeBroker, is_streaming: bool) -> None:
    (partition,) = broker.create("events")
    fill(partition, [5, 5])
    wanted = RangePartition([FetchRange(partition.tp, 1, 9, "events")])
    for resume_offset, told, option in ((7, "failOnDataLoss=false.*at offset 7", "true"), (-1, "^rotten$", "false")):
        broker.errors["Fetch"] = [LogDamagedError("rotten", resume_offset=resume_offset)]
        options = options_for(broker, is_streaming=is_streaming, failOnDataLoss=option)
        with pytest.raises(LogDamagedError, match=told):
            list(read_partition(wanted, options, ALL_COLUMNS))


def read_together(broker: FakeBroker, partitions: Sequence[Partition], until: int, **options: Any) -> dict[int, list[int]]:
    """Reads all `partitions` up to `until` in one task. Returns the offsets of each, in the order of the rows."""
    ranges = [FetchRange(one.tp, 0, until, "events") for one in partitions]
    batches = read_partition(RangePartition(ranges), options_for(broker, is_streaming=True, **options), ALL_COLUMNS)
    found: dict[int, list[int]] = {}
    for row in [row for batch in batches for row in batch.to_pylist()]:
        assert row["value"].rstrip(b".") == b"%d" % row["offset"]
        assert row["topic"] == "events"
        found.setdefault(row["partition"], []).append(row["offset"])
        assert row["partition"] == max(found), "one partition after the other"
    return found


def test_a_task_of_many_partitions_reads_each_in_order(broker: FakeBroker) -> None:
    partitions = broker.create("events", 5)
    for partition in partitions:
        fill(partition, [3, 1, 3_000, 7])
    assert read_together(broker, partitions, 3_009) == {number: list(range(3_009)) for number in range(5)}


def test_a_loss_in_one_of_many_partitions_neither_takes_nor_repeats_rows_of_others(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    partitions = broker.create("events", 3)
    for partition in partitions:
        fill(partition, [3_000] * 4)
    partitions[1].log_start_offset = 7_000
    with pytest.raises(DataLossError, match="7000 records of events-1 are gone, offsets 0 to 6999"):
        read_together(broker, partitions, 12_000)
    everything = list(range(12_000))
    found = read_together(broker, partitions, 12_000, failOnDataLoss="false")
    assert found == {0: everything, 1: everything[7_000:], 2: everything}
    assert "7000 records of events-1 are gone" in caplog.text


def test_a_topic_deleted_under_a_task_of_many_partitions_is_data_loss(broker: FakeBroker) -> None:
    partitions = broker.create("events", 2)
    for partition in partitions:
        fill(partition, [5])
    broker.create("events", 2)
    with pytest.raises(DataLossError, match="topic 'events' was deleted, and perhaps recreated"):
        read_together(broker, partitions, 5)
    assert read_together(broker, partitions, 5, failOnDataLoss="false") == {}


def test_the_modules_that_plan_and_read_do_not_import_what_they_seldom_need() -> None:
    modules = "brokerd.datasource.batch_reader, brokerd.datasource.stream_reader"
    program = f"import sys, {modules}; print({{'pyarrow.compute', 'brokerd.config.broker'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert done.stdout == "set()\n"


def test_a_streams_process_spares_what_spark_imported_from_collection() -> None:
    program = (
        "import gc; from pyspark.sql.types import BinaryType, StructType; from brokerd.datasource.source import BrokerdDataSource\n"
        "options = {'bootstrap.servers': '127.0.0.1:9', 'subscribe': 'events'}\n"
        "BrokerdDataSource(options).streamReader(StructType().add('value', BinaryType())); print(gc.get_freeze_count() > 1_000)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert done.stdout == "True\n"


def test_a_marker_that_was_passed_is_not_missed_when_another_partition_loses_records(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    ended, lost = broker.create("events", 2)
    fill(ended, [5])
    ended.put(encode_control(ControlRecord(committed_producer_ids=[1]), ended.tp, timestamp_ms=TIMESTAMP_MS).data)
    fill(lost, [3_000] * 20)
    ranges = [FetchRange(ended.tp, 0, 6, "events"), FetchRange(lost.tp, 0, 60_000, "events")]
    options = options_for(broker, is_streaming=True, failOnDataLoss="false", **{"max.partition.fetch.bytes": 1})
    with caplog.at_level(logging.WARNING), lease_client(options.consumer) as client:
        reading = _fetched(client, ranges, options)
        while next(reading).offsets[-1].as_py() < 5_999:  # its response, the second, also holds the marker
            pass
        ended.log_start_offset, lost.log_start_offset = 6, 59_000
        assert [one.offsets[-1].as_py() for one in reading][-1] == 59_999
    assert "of events-1 are gone" in caplog.text
    assert "of events-0 are gone" not in caplog.text
