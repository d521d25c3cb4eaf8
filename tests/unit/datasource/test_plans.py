"""Random lives of a query: writes, limits of every kind, splits, restarts and replays. In each life the micro-batches together
cover the log, each offset once and in order within its partition, and no limit stalls the query.

`BROKERD_TEST_SCALE=20` runs ten thousand lives.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from brokerd.clock import SystemClock
from brokerd.datasource import stream_reader
from brokerd.datasource.options import SourceOptions, parse_source_options
from brokerd.datasource.planning import RangePartition
from brokerd.datasource.stream_reader import BrokerdStreamReader
from brokerd.errors import CorruptMessageError
from tests.support.clock import ManualClock
from tests.support.scale import TEST_SCALE
from tests.unit.datasource.model_log import TOPIC, ModelClient, ModelPartition
from tests.unit.datasource.reading import ALL_COLUMNS

LIVES = 500 * TEST_SCALE
LIVES_PER_CASE = 50
BATCHES_MAX = 20_000  # of one run; a stalled query never ends

Read = list[tuple[int, int, int]]  # partition, start, until of a micro-batch's ranges


class Query:
    """A streaming query, with or without trigger(availableNow=True), driven as Spark does, on a model of a topic."""

    def __init__(self, rng: random.Random, client: ModelClient) -> None:
        self.rng = rng
        self.client = client
        self.clock = ManualClock()
        self.batches: list[tuple[dict[str, Any], dict[str, Any], Read]] = []
        self.offset: dict[str, Any] | None = None

    def options(self) -> SourceOptions:
        """Random options for each run: a user may change limits and splits between runs."""
        rng = self.rng
        most, least = sorted((rng.randrange(1, 60), rng.randrange(1, 60)), reverse=True)
        possible = {
            "maxOffsetsPerTrigger": most,
            "maxBytesPerTrigger": rng.choice((1, rng.randrange(1, 2_000), rng.randrange(1, 20_000))),
            "minOffsetsPerTrigger": least,
            "maxTriggerDelay": "1s",
            "minPartitions": rng.randrange(1, 12),
            "maxRecordsPerPartition": rng.randrange(1, 30),
            "taskPerPartition": "true",
        }
        chosen = {name: str(value) for name, value in possible.items() if rng.random() < 0.3}
        return parse_source_options(
            {"bootstrap.servers": "127.0.0.1:1", "subscribe": TOPIC, "startingOffsets": "earliest", **chosen}, is_streaming=True
        )

    def write(self) -> None:
        """Randomly adds a partition, appends batches, and decides transactions."""
        if self.rng.random() < 0.05 and len(self.client.partitions) < 6:
            self.client.partitions.append(ModelPartition())
        for _ in range(self.rng.randrange(4)):
            self.rng.choice(self.client.partitions).append(self.rng.choice((1, 1, 5, 40)), self.rng.choice((100, 700, 9_000)))
        for partition in self.client.partitions:
            partition.last_stable_offset = self.rng.randint(partition.last_stable_offset, partition.end_offset)

    def run(self, *, to_end: bool) -> None:
        """One run, until it is killed or has read everything."""
        reader = BrokerdStreamReader(self.options(), ALL_COLUMNS, self.clock)
        start = self.replayed(reader) if self.batches and self.rng.random() < 0.5 else self.offset or reader.initialOffset()
        if to_end:
            reader.prepareForTriggerAvailableNow()
        target = [one.last_stable_offset for one in self.client.partitions]
        limit = reader.getDefaultReadLimit()
        for _ in range(BATCHES_MAX if to_end else self.rng.randrange(6)):
            self.write()
            self.clock.advance(self.rng.choice((0, 400, 2_000)))
            end = through_json(reader.latestOffset(start, limit))
            if end == start:
                if to_end:
                    assert start[TOPIC] == {str(number): offset for number, offset in enumerate(target)}, "no more, no less"
                    return
                continue
            self.batches.append((start, end, ranges_of(reader, start, end)))
            self.offset = start = end
        assert not to_end, "the query never ends"

    def replayed(self, reader: BrokerdStreamReader) -> dict[str, Any]:
        """Replays the last micro-batch, as after a kill before its commit. It reads the same offsets, however they are split."""
        start, end, read = self.batches[-1]
        assert joined(ranges_of(reader, start, end)) == joined(read)
        return end


def drive(client: ModelClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes planning use this client. The model has no records, and half of the reads with a plan fail."""
    rng = random.Random(len(client.partitions))

    def read(*_: object) -> Iterator[pa.RecordBatch]:
        if rng.random() < 0.5:
            raise CorruptMessageError("not now")
        yield from ()

    monkeypatch.setattr(stream_reader, "lease_client", client.lease)
    monkeypatch.setattr(stream_reader, "read_ranges", read)


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    """The offset as Spark stores it."""
    parsed: dict[str, Any] = json.loads(json.dumps(offset))
    return parsed


def ranges_of(reader: BrokerdStreamReader, start: dict[str, Any], end: dict[str, Any]) -> Read:
    """The ranges of a micro-batch, in the order of its tasks."""
    planned = [one for task in reader.partitions(start, end) if isinstance(task, RangePartition) for one in task.ranges]
    return [(one.tp.partition, one.start_offset, one.until_offset) for one in planned]


def joined(read: Read) -> dict[int, tuple[int, int]]:
    """The range of each partition in a micro-batch. Its pieces must be contiguous and in order."""
    whole: dict[int, tuple[int, int]] = {}
    for partition, start, until in read:
        assert start < until, "no task without offsets"
        begin, end = whole.get(partition, (start, start))
        assert start == end, "in order, without a gap"
        whole[partition] = (begin, until)
    return whole


@pytest.mark.parametrize("case", range(LIVES // LIVES_PER_CASE))
def test_every_offset_is_read_once_and_in_order(case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(case * LIVES_PER_CASE, (case + 1) * LIVES_PER_CASE):
        rng = random.Random(seed)
        client = ModelClient([ModelPartition(rng.choice((0, 7))) for _ in range(rng.randrange(1, 5))])
        drive(client, monkeypatch)
        query = Query(rng, client)
        client.while_waiting = query.write
        for _ in range(rng.randrange(1, 4)):
            query.run(to_end=rng.random() < 0.3)
        query.write()
        for partition in client.partitions:
            partition.decide()
        everything = {number: one.end_offset for number, one in enumerate(client.partitions)}
        query.run(to_end=True)
        ends = {number: client.partitions[number].log_start_offset for number in everything}
        for _, _, read in query.batches:
            for number, (begin, until) in joined(read).items():
                assert begin == ends[number], f"seed {seed}: partition {number}"
                ends[number] = until
        assert ends == everything, f"seed {seed}"


def limited(**options: int) -> list[dict[int, tuple[int, int]]]:
    """The micro-batches of a run over the whole backlog."""
    given = {"bootstrap.servers": "127.0.0.1:1", "subscribe": TOPIC, "startingOffsets": "earliest"}
    parsed = parse_source_options(given | {name: str(value) for name, value in options.items()}, is_streaming=True)
    reader = BrokerdStreamReader(parsed, ALL_COLUMNS, SystemClock())
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    found: list[dict[int, tuple[int, int]]] = []
    for _ in range(BATCHES_MAX):
        end = through_json(reader.latestOffset(start, reader.getDefaultReadLimit()))
        if end == start:
            return found
        found.append(joined(ranges_of(reader, start, end)))
        start = end
    raise AssertionError("the query never ends")


@pytest.mark.parametrize("seed", range(20))
def test_rows_and_bytes_both_hold_and_nobody_starves(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A micro-batch exceeds its limits at most by the first record (or record batch) of each partition with a backlog. Each such
    partition advances in every micro-batch."""
    rng = random.Random(seed)
    client = ModelClient([ModelPartition() for _ in range(rng.randrange(1, 6))])
    drive(client, monkeypatch)
    for partition in client.partitions:
        for _ in range(rng.choice((0, 3, 200))):
            partition.append(rng.choice((1, 5, 40)), rng.choice((100, 700, 9_000)))
        partition.decide()
    max_rows, max_bytes = rng.randrange(1, 300), rng.choice((1, 500, 20_000, 100_000))
    found = limited(maxOffsetsPerTrigger=max_rows, maxBytesPerTrigger=max_bytes)
    at = dict.fromkeys(range(len(client.partitions)), 0)
    for batch in found:
        waiting = {number for number, one in enumerate(client.partitions) if one.end_offset > at[number]}
        assert set(batch) == waiting, "nobody starves"
        assert sum(until - begin for begin, until in batch.values()) <= max_rows + len(batch)
        sizes = {number: client.partitions[number].bytes_between(*read) for number, read in batch.items()}
        assert sum(map(sum, sizes.values())) <= max_bytes + sum(one[0] for one in sizes.values())
        at = {number: batch.get(number, (0, at[number]))[1] for number in at}
    assert at == {number: one.end_offset for number, one in enumerate(client.partitions)}


def test_a_large_partition_does_not_take_the_share_of_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ModelClient([ModelPartition(), ModelPartition()])
    drive(client, monkeypatch)
    for number, batches in ((0, 900), (1, 100)):
        for _ in range(batches):
            client.partitions[number].append(10, 1_000)
        client.partitions[number].decide()
    found = limited(maxBytesPerTrigger=100_000)
    assert found == [{0: (900 * n, 900 * (n + 1)), 1: (100 * n, 100 * (n + 1))} for n in range(10)]


def test_bytes_that_suffice_take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ModelClient([ModelPartition(), ModelPartition()])
    drive(client, monkeypatch)
    for partition in client.partitions:
        partition.append(10, 1_000)
        partition.decide()
    assert limited(maxBytesPerTrigger=2_000) == [{0: (0, 10), 1: (0, 10)}]
    assert len(limited(maxBytesPerTrigger=1_999)) == 1, "a record batch larger than its share still goes"
