"""PartitionCore without files: batches from a leader, cuts, flushes that could not be tried, and the in-sync replicas' ends."""

from __future__ import annotations

import pytest

from brokerd.config.topic import TopicConfig
from brokerd.errors import CorruptMessageError
from brokerd.partition.core import Append, InSync, PartitionCore
from brokerd.partition.flush_state import FlushOutcome
from brokerd.partition.leader_epochs import LeaderEpochs
from brokerd.partition.log_state import LogState
from brokerd.partition.producer_state import ProducerStates
from brokerd.record.header import BatchHeader, new_header
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.segment import Segment
from brokerd.storage.segment_bounds import SegmentBounds
from tests.support.files import MemoryFiles

SEED = 7
BATCH_BYTES = 296


def new_core(**settings: int) -> PartitionCore:
    files = MemoryFiles()
    first = Segment(files, OpenFiles(files, limit=1), "", 0, SEED)
    state = LogState([first], ProducerStates("t-0", limit=100), LeaderEpochs(), 0, 0, 0)
    return PartitionCore("t-0", SEED, TopicConfig(**settings), state)  # type: ignore[arg-type]


def header(*, base_offset: int = 0, leader_epoch: int = 0) -> BatchHeader:
    """The header of a batch with one record and no producer id."""
    made = new_header(
        batch_length=BATCH_BYTES - 96, payload_crc=0, record_count=1, base_timestamp=0, max_timestamp=0, uncompressed_bytes=0
    )
    return made._replace(base_offset=base_offset, leader_epoch=leader_epoch)


def write(core: PartitionCore, append: object) -> None:
    """Reports an append as written, and before it the roll if one is due."""
    assert isinstance(append, Append)
    if append.must_roll:
        core.rolled(SegmentBounds(core.ends.log_end_offset))
    core.written(append)


def flush(core: PartitionCore, *, is_untried: bool = False) -> tuple[int, list[int], list[int], bool]:
    """Runs the due flush. Returns its end offset, its segments and snapshots by offset, and whether it includes the epochs."""
    plan = core.begin_flush()
    assert plan is not None
    core.flushed(plan, FlushOutcome(untried_error=OSError() if is_untried else None))
    return (
        plan.end_offset,
        [segment.base_offset for segment in plan.sealed],
        [snapshot.offset for snapshot in plan.snapshots],
        plan.epochs is not None,
    )


def test_a_follower_takes_what_continues_its_log_and_no_epoch_out_of_order() -> None:
    core = new_core()
    core.follow(3)
    write(core, core.append_as_follower(header(leader_epoch=1)))
    write(core, core.append_as_follower(header(base_offset=1, leader_epoch=3)))
    for offset in (1, 3):
        with pytest.raises(CorruptMessageError, match=f"a batch at offset {offset} does not continue a log that ends at 2"):
            core.append_as_follower(header(base_offset=offset, leader_epoch=3))
    for epoch in (2, 4):
        with pytest.raises(CorruptMessageError, match=f"a batch of leader epoch {epoch} "):
            core.append_as_follower(header(base_offset=2, leader_epoch=epoch))
    for time_ms in (2**62 + 1, -(2**63)):
        with pytest.raises(CorruptMessageError, match=f"appended at {time_ms} ms, is beyond "):
            core.append_as_follower(header(base_offset=2, leader_epoch=3)._replace(append_timestamp=time_ms))
    assert [(entry.epoch, entry.start_offset) for entry in core.epochs.entries] == [(1, 0), (3, 1)]


def test_a_cut_never_goes_below_the_high_watermark() -> None:
    core = new_core()
    core.follow(1)
    for offset in range(3):
        write(core, core.append_as_follower(header(base_offset=offset, leader_epoch=1)))
    flush(core)
    core.ends.leader_at(2, 2)
    with pytest.raises(ValueError, match="cannot be cut at offset 1, below the high watermark 2"):
        core.truncate_to(1)
    assert core.truncate_to(2).offset == 2


def test_what_a_flush_did_not_try_is_due_again() -> None:
    core = new_core(segment_bytes=BATCH_BYTES)
    core.lead(1)
    for _ in range(2):
        write(core, core.append_as_leader(header(), 0))
    due = (2, [0], [1], True)
    assert flush(core, is_untried=True) == due
    assert core.ends.durable_end == 0
    assert flush(core) == due
    assert core.ends.high_watermark == 2
    assert core.begin_flush() is None


def test_the_high_watermark_is_what_all_replicas_in_sync_have() -> None:
    core = new_core()
    core.lead(2, InSync([1, 2], 3, 3))
    for _ in range(5):
        write(core, core.append_as_leader(header(), 0))
    flush(core)
    ends = core.ends
    assert (ends.durable_end, ends.high_watermark) == (5, 0), "who has said nothing has nothing"
    ends.replica_at(1, 5)
    ends.replica_at(9, 5)  # not a replica
    assert ends.high_watermark == 0
    ends.replica_at(2, 3)
    assert (ends.high_watermark, ends.last_stable_offset) == (3, 3)
    ends.in_sync([1])
    assert ends.high_watermark == 5, "one that has left counts no longer"
    ends.in_sync([1, 2])
    assert ends.high_watermark == 5, "it never goes back"
