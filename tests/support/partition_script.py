"""Commands of the partition core's scenarios (tests/model/scenarios/partition), done on a PartitionCore and nothing else.

settings NAME=VALUE ...                the topic's settings, first of all; a record takes 100 bytes
lead 2 [with 1 2]                      this node leads in epoch 2, with these other replicas in sync
follow 3                               another node leads in epoch 3
append 3 [by 7 epoch 0 sequence 0] [as member] [fails]
                                       a client's batch of three records; it is written, unless the write fails
copy 0-2 epoch 1 [by 7 sequence 0]     a batch as its leader stamped it
marker for 7 8 [aborted] [held]        a control batch that ends the transactions of these producers; held: their commit holds
                                       back the log
release 5                              the commit whose marker is at offset 5 holds it back no longer
flush begins | done | fails | untried  what a flush has to do; what it came to
in sync 1 2                            these other replicas count
replica 1 at 5                         a follower says how far it is durable
leader at 5                            the leader says where its high watermark is
time 5000                              milliseconds pass
retain                                 where retention lets the log begin; it begins there
delete 3                               records before offset 3 are deleted
remove, checkpoint at 3                segments go; the checkpoint on the disk says that the log begins at 3
cut at 5                               the log is cut
ends | producers | epochs              where things stand
aborted in 3-8                         the aborted transactions that a reader of these offsets is told of
holds 7                                what a producer's open transaction has here
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise

from brokerd.config.topic import TopicConfig
from brokerd.errors import WireError
from brokerd.partition.core import Append, PartitionCore
from brokerd.partition.flush_state import FlushOutcome
from brokerd.partition.leader_epochs import LeaderEpochs
from brokerd.partition.log_ends import Moved
from brokerd.partition.log_state import LogState
from brokerd.partition.markers import Marker
from brokerd.partition.producer_state import BatchMetadata, ProducerStates
from brokerd.record.header import Attributes, BatchHeader, new_header
from brokerd.storage.open_files import OpenFiles
from brokerd.storage.segment import Segment, SegmentBounds
from tests.support.files import MemoryFiles

_RECORD_BYTES = 100
_HEADER_BYTES = 96
_SEED = 7
_TRANSACTIONAL = int(Attributes.TRANSACTIONAL)


class PartitionScript:
    """One scenario, command by command."""

    def __init__(self) -> None:
        self._core: PartitionCore | None = None
        self._now_ms = 0
        self._log: list[tuple[BatchHeader, Append]] = []
        self._lines: list[str] = []

    def do(self, command: str) -> list[str]:
        """Does a command; what it led to. Raises LookupError for one that there is not."""
        words = command.replace(",", "").split()
        for count in (2, 1):
            method: Callable[..., None] | None = getattr(self, "_do_" + "_".join(words[:count]), None)
            if method is not None:
                try:
                    method(*words[count:])
                except (WireError, ValueError) as error:
                    self._lines.append(f"{type(error).__name__}: {getattr(error, 'message', error)}")
                lines, self._lines = self._lines, []
                return lines
        raise LookupError(f"there is no command '{command}'")

    @property
    def core(self) -> PartitionCore:
        """The core that the commands act upon."""
        if self._core is None:
            self._do_settings()
        assert self._core is not None
        return self._core

    def _do_settings(self, *words: str) -> None:
        files = MemoryFiles()
        config = TopicConfig(**{name: int(value) for name, value in (word.split("=") for word in words)})  # type: ignore[arg-type]
        first = Segment(files, OpenFiles(files, limit=1), "", 0, _SEED)
        state = LogState([first], ProducerStates("t-0", limit=100), LeaderEpochs(), 0, 0, 0)
        self._core = PartitionCore("t-0", _SEED, config, state)
        self._core.lead(1)

    # --- appends

    def _header(self, count: int, words: list[str], attributes: int = 0) -> BatchHeader:
        given = dict(pairwise(words))
        return new_header(
            batch_length=count * _RECORD_BYTES - _HEADER_BYTES,
            payload_crc=0,
            record_count=count,
            base_timestamp=self._now_ms,
            max_timestamp=self._now_ms,
            uncompressed_bytes=0,
            producer_id=int(given.get("by", -1)),
            producer_epoch=int(given.get("epoch", -1)),
            base_sequence=int(given.get("sequence", -1)),
            attributes=attributes,
        )

    def _do_append(self, count: str, *rest: str) -> None:
        words = list(rest)
        is_member = "member" in words
        header = self._header(int(count), words, _TRANSACTIONAL if is_member and "plain" not in words else 0)
        decided = self.core.append_as_leader(header, self._now_ms, is_open_member=is_member and "stranger" not in words)
        if isinstance(decided, BatchMetadata):
            self._lines.append(f"repeats {decided.base_offset}-{decided.last_offset}")
        else:
            self._carry_out(header, decided, fails="fails" in words)

    def _do_copy(self, offsets: str, *rest: str) -> None:
        first, last = map(int, offsets.split("-"))
        header = self._header(last - first + 1, list(rest))
        header = header._replace(base_offset=first, leader_epoch=header.producer_epoch, producer_epoch=0)
        self._carry_out(header, self.core.append_as_follower(header))

    def _do_marker_for(self, *words: str) -> None:
        header = self._header(1, [], _TRANSACTIONAL | int(Attributes.CONTROL))
        ids = tuple(int(word) for word in words if word not in ("held", "aborted"))
        is_aborted, is_held = "aborted" in words, "held" in words
        marker = Marker((), ids) if is_aborted else Marker(ids, ())
        first_offset = self.core.first_open_offset(ids)
        if is_held and first_offset is not None:
            assert not self.core.ends.hold_back(f"marker {self.core.ends.log_end_offset}", first_offset)
        self._carry_out(header, self.core.append_marker(header, self._now_ms, marker))

    def _carry_out(self, header: BatchHeader, append: Append, *, fails: bool = False) -> None:
        core = self.core
        where = f"{append.base_offset}-{append.next_offset - 1}, epoch {append.leader_epoch}"
        if append.must_roll:
            core.rolled(SegmentBounds(core.ends.log_end_offset))
            self._lines.append(f"roll at {core.ends.log_end_offset}")
        if fails:
            self._lines.append(f"write {where}: it fails, and nothing is reported")
            return
        self._lines.append(f"write {where}")
        stamped = header._replace(
            base_offset=append.base_offset, append_timestamp=append.append_timestamp, leader_epoch=append.leader_epoch
        )
        self._log.append((stamped, append))
        self._moved(core.written(append))

    def _do_release(self, offset: str) -> None:
        self._moved(self.core.ends.release(f"marker {offset}"))

    # --- durability

    def _do_flush(self, what: str) -> None:
        core = self.core
        if what == "begins":
            plan = core.begin_flush()
            if plan is None:
                self._lines.append("nothing to do")
                return
            sealed = [segment.base_offset for segment in plan.sealed]
            snapshots = [snapshot.offset for snapshot in plan.snapshots]
            epochs = "none" if plan.epochs is None else [entry[:2] for entry in plan.epochs]
            self._lines.append(f"sync up to {plan.end_offset}; sealed {sealed}, snapshots {snapshots}, epochs {epochs}")
            return
        plan = core.flushes.under_way
        assert plan is not None, "no flush is under way"
        if what == "fails":
            core.flush_failed(plan, OSError(errno.EIO, "Input/output error"))
            self._lines.append("the log has stopped")
        else:
            self._moved(core.flushed(plan, FlushOutcome(is_untried=what == "untried")))

    # --- epochs and replicas

    def _do_lead(self, epoch: str, *words: str) -> None:
        self._moved(self.core.lead(int(epoch), [int(word) for word in words[1:]]))

    def _do_follow(self, epoch: str) -> None:
        self.core.follow(int(epoch))

    def _do_in_sync(self, *nodes: str) -> None:
        self._moved(self.core.ends.in_sync([int(node) for node in nodes]))

    def _do_replica(self, node: str, _at: str, offset: str) -> None:
        self._moved(self.core.ends.replica_at(int(node), int(offset)))

    def _do_leader_at(self, offset: str) -> None:
        self._moved(self.core.ends.leader_at(int(offset)))

    # --- what goes

    def _do_time(self, ms: str) -> None:
        self._now_ms += int(ms)

    def _do_retain(self) -> None:
        start = self.core.retained_from(self._now_ms)
        self._lines.append(f"the log begins at {start}")
        self._moved(self.core.ends.set_log_start(start))

    def _do_delete(self, before_offset: str) -> None:
        self._moved(self.core.ends.set_log_start(self.core.deletion_target(int(before_offset))))

    def _do_remove_checkpoint(self, _at: str, offset: str) -> None:
        count = self.core.removable_count(int(offset))
        gone = [segment.base_offset for segment in self.core.segments[:count]]
        self.core.retired(count)
        self._lines.append(f"segments {gone} go, {[segment.base_offset for segment in self.core.segments]} stay")

    def _do_cut_at(self, offset: str) -> None:
        core = self.core
        cut = core.truncate_to(int(offset))
        self._lines.append(
            f"{cut.kept} of {len(core.segments)} segments stay, snapshots {list(cut.snapshot_offsets)} go, "
            f"producers are restored from {cut.restore_from}"
        )
        last, producers = SegmentBounds(core.segments[cut.kept - 1].base_offset), ProducerStates("t-0", limit=100)
        self._log = [entry for entry in self._log if entry[1].next_offset <= cut.offset]
        for header, append in self._log:
            if append.base_offset >= last.base_offset:
                last.add(append.next_offset, append.size_bytes, append.max_timestamp, append.log_time)
            producers.replay(header, append.marker)
        core.truncated(cut, last, producers)
        self._lines.append(f"the log ends at {core.ends.log_end_offset}")

    # --- looking

    def _moved(self, moved: Moved) -> None:
        if moved:
            self._lines.append("moved: " + ", ".join(end.value for end in moved))

    def _do_ends(self) -> None:
        ends = self.core.ends
        self._lines.append(
            f"start {ends.log_start_offset}, stable {ends.last_stable_offset}, high watermark {ends.high_watermark}, "
            f"durable {ends.durable_end}, end {ends.log_end_offset}"
        )

    def _do_producers(self) -> None:
        for producer_id, entry in self.core.producers.entries.items():
            batches = [f"{batch.first_sequence}-{batch.last_sequence} at {batch.base_offset}" for batch in entry.batches]
            in_transaction = f", in a transaction from {entry.txn_first_offset}" if entry.txn_first_offset >= 0 else ""
            self._lines.append(f"producer {producer_id}, epoch {entry.epoch}: sequences {', '.join(batches)}{in_transaction}")

    def _do_aborted(self, _in: str, offsets: str) -> None:
        first, last = map(int, offsets.split("-"))
        found = self.core.aborted_transactions(first, last + 1)
        said = [f"{one.producer_id} from {one.first_offset} to {one.marker_offset}" for one in found]
        self._lines.append(", ".join(said) or "none")

    def _do_holds(self, producer_id: str) -> None:
        found = self.core.open_data(int(producer_id))
        is_first = list(self.core.producers.open_transactions)[:1] == [int(producer_id)]
        self._lines.append(f"{found}{', which began first' if is_first else ''}")

    def _do_epochs(self) -> None:
        self._lines.append(", ".join(f"epoch {entry.epoch} from {entry.start_offset}" for entry in self.core.epochs.entries))
