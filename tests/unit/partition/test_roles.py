"""A partition has no role until it is told one. A request that waits in one leader epoch is never acknowledged in another."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from brokerd.config.topic import TopicConfig
from brokerd.datadir.partition_table import PartitionTable
from brokerd.datadir.topic_store import TopicStore
from brokerd.errors import CorruptMessageError, Fate, FencedLeaderEpochError, NotLeaderError
from brokerd.ids import TopicIdPartition
from brokerd.partition.core import InSync
from brokerd.partition.cut import truncate
from brokerd.partition.leader_epochs import LeaderEpochs
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.log_state import LogState
from brokerd.partition.partition import LogResources, Partition
from brokerd.partition.producer_state import ProducerStates
from brokerd.purgatory import Completion, Purgatory
from brokerd.record.batch import RecordBatch
from brokerd.record.header import HEADER_SIZE, crc_seed, decode_header
from brokerd.server.delayed_produce import Appended, DelayedProduce
from brokerd.server.handlers.fetch import DelayedFetch, ParkedPartition
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.segment import Segment
from brokerd.storage.spare_files import SpareFiles
from tests.support.build import append, raw_batch, read_batches
from tests.support.clock import START_WALL_MS
from tests.support.files import MemoryFiles
from tests.support.steps import run_here

TP = TopicIdPartition(b"roles of a topic", 0)


def partition() -> Partition:
    """An empty partition without a role."""
    files = MemoryFiles()
    files.mkdir(TP.directory_name)
    open_files = OpenFiles(files, limit=4)
    resources = LogResources(files, SpareFiles(files), open_files, 10)
    found = Partition(TP, "t", TopicConfig(), resources, _empty(files, open_files))
    found.segments[-1].create()
    return found


def _empty(files: MemoryFiles, open_files: OpenFiles) -> LogState:
    segment = Segment(files, open_files, TP.directory_name, 0, crc_seed(TP))
    return LogState([segment], ProducerStates("t-0", limit=10), LeaderEpochs(), 0, 0, 0)


def stamped(value: bytes, *, epoch: int) -> RecordBatch:
    """A batch at offset 0, as stamped by the leader of `epoch`."""
    leader = partition()
    leader.lead(epoch)
    append(leader, value)
    leader.flush()
    (batch,) = read_batches(leader)
    return batch


@pytest.mark.parametrize("end", ["never told", "follows", "resigned"])
def test_only_a_leader_takes_appends_and_is_handed_out(end: str) -> None:
    log = partition()
    if end == "follows":
        log.follow(3)
    elif end == "resigned":
        log.lead(1)
        log.resign()
    with pytest.raises(NotLeaderError) as refused:
        append(log, b"x")
    assert refused.value.fate is Fate.NOT_APPENDED
    table = PartitionTable(TopicStore(MemoryFiles()))
    table.add(log)
    with pytest.raises(NotLeaderError):
        table.leader(TP)
    log.lead(4)
    assert table.leader(TP) is log
    assert append(log, b"x") == 0


def test_each_leader_has_an_epoch_of_its_own() -> None:
    log = partition()
    log.lead(2)
    for epoch in (1, 2):
        with pytest.raises(FencedLeaderEpochError):
            log.lead(epoch)
        with pytest.raises(FencedLeaderEpochError):
            log.follow(epoch)
    log.follow(3)
    with pytest.raises(FencedLeaderEpochError):
        log.lead(3)
    log.lead(4)
    assert log.leader_epoch == 4


def test_a_follower_takes_what_is_whole_and_only_as_a_follower() -> None:
    batch = stamped(b"from the leader", epoch=5)
    log = partition()
    with pytest.raises(NotLeaderError):
        log.append_as_follower(batch)
    log.follow(5)
    for at in (20, 100):  # in the header, and in the payload
        data = bytearray(batch.data.to_pybytes())
        data[at] ^= 1
        with pytest.raises(CorruptMessageError):
            log.append_as_follower(RecordBatch(decode_header(bytes(data[:HEADER_SIZE])), pa.py_buffer(bytes(data))))
    log.append_as_follower(batch)
    assert log.ends.log_end_offset == 1


async def test_what_waits_is_settled_before_anything_of_another_epoch_happens() -> None:
    """A leader appends, is cut off, and then follows another leader, whose records must not acknowledge the old request."""

    log, purgatory = partition(), Purgatory()
    log.lead(1, InSync([2], 2, 2))
    append(log, b"mine")
    log.flush()
    settled = asyncio.get_running_loop().create_future()
    produce = DelayedProduce(1_000, {0: Appended(log, 0, log.leader_epoch)}, settled)
    parked = ParkedPartition(log, log.leader_epoch, 0, 0, 0, None, 1_000)
    fetch = DelayedFetch(1_000, [parked], end=LogEnd.HIGH_WATERMARK, min_bytes=1, on_done=lambda: None)
    assert not purgatory.try_complete_else_watch(produce)
    assert not purgatory.try_complete_else_watch(fetch)
    log.follow(2)
    assert (produce.completion, fetch.completion) == (Completion.CONDITION, Completion.CONDITION)
    (error,) = produce.errors.values()
    assert isinstance(error, NotLeaderError)
    assert error.fate is Fate.UNKNOWN
    assert run_here(truncate({log: 0}, lambda: lambda: None)) == {}
    log.append_as_follower(stamped(b"another's", epoch=2))
    log.flush()
    log.wake(log.ends.leader_at(1, 1))
    assert (log.ends.high_watermark, len(produce.errors)) == (1, 1)


async def test_a_wait_that_begins_too_late_is_no_acknowledgement_either() -> None:
    log = partition()
    log.lead(1)
    offset = log.append(raw_batch(b"x"), now_wall_ms=START_WALL_MS).last_offset
    log.flush()
    log.resign()
    late = DelayedProduce(1_000, {0: Appended(log, offset, 1)}, asyncio.get_running_loop().create_future())
    Purgatory().try_complete_else_watch(late)
    assert isinstance(late.errors[0], NotLeaderError)
