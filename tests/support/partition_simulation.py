"""A partition on one or two replicas, in seeded schedules: `Simulation(seed).run()` raises AssertionError if a Partition breaks a
promise.

Checked: partition_promises.py at every step. Every event returns exactly the log ends that it moved, and every request that waits
for one of them is woken.

Real: Partition, its recovery and the purgatory, on files in memory. Simulated: a controller whose epochs reach the replicas late,
so deposed leaders accept appends and old requests stay parked. One replica leads; the other fetches and truncates what diverges.
Random steps: appends (new, repeated, invalid), transactions, markers, flushes that complete late or fail, failing writes, rolls,
retention, DeleteRecords, checkpoints, kills, power cuts, elections. Any of these may also occur while a truncation or a cold read
waits for the disk. Two clients with stale metadata (partition_clients.py) check what they are told."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa

from brokerd.config.topic import TopicConfig
from brokerd.errors import (
    InvalidTxnStateError,
    LogDamagedError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    StorageError,
    WireError,
)
from brokerd.ids import NO_PRODUCER, ProducerIdAndEpoch
from brokerd.partition import flush_state
from brokerd.partition.core import HIGH_WATERMARK, InSync, Role
from brokerd.partition.cut import truncate
from brokerd.partition.log_ends import LogEnd, Moved
from brokerd.partition.partition import LogAppendInfo, Partition
from brokerd.purgatory import Purgatory
from brokerd.record.batch import RecordBatch, walk_batches
from brokerd.record.control import encode_control
from brokerd.record.header import Attributes
from brokerd.server.delayed_produce import Appended, DelayedProduce
from brokerd.server.handlers.fetch import DelayedFetch, ParkedPartition, park
from brokerd.wire.v1 import control_pb2
from tests.support.build import raw_batch, run_flush
from tests.support.clock import START_WALL_MS
from tests.support.files import Killed
from tests.support.partition_clients import HonestProducer, HonestReader
from tests.support.partition_promises import Promises, check_state, cut_offset, end_of_epoch, reported_end
from tests.support.partition_replica import SEED, TP, Replica, Stored

PRODUCERS = 3
_FIRST_MEMBER = 100
_STEPS = (40, 90)
_NEVER_MS = 10**9
_FETCHES_MAX = 300
_ELECTIONS_MAX = 10
_NOBODY: Any = SimpleNamespace(done=lambda: True)  # as the awaiting future: always done, so the operation alone records its result


class Parked(NamedTuple):
    """A fetch that waits for one of a log's ends."""

    replica: Replica
    waits: ParkedPartition
    end: LogEnd
    operation: DelayedFetch


class Simulation:
    """See the module."""

    def __init__(self, seed: int, *, trace: list[str] | None = None) -> None:
        self.rng = rng = random.Random(seed)
        self.now_ms = START_WALL_MS
        self.epoch = 40 if seed % 2 else 1  # partition epochs may be far above the number of starts
        config = TopicConfig(
            segment_bytes=rng.choice((700, 1_500, 4_000)),
            segment_ms=rng.choice((5_000, 10**9)),
            retention_bytes=rng.choice((-1, 500, 2_000)),
            retention_ms=rng.choice((-1, 10_000)),
            index_interval_bytes=128,
        )
        flush_state.RECOVERY_WINDOW_BYTES = rng.choice((500, 3_000, 1 << 26))
        self.replicas = [Replica(number, config) for number in range(rng.choice((1, 2, 2)))]
        self.is_alone = len(self.replicas) == 1
        self.leader: Replica | None = None  # the controller's choice; it may not know yet
        self.in_sync = {replica.number for replica in self.replicas}
        self.promises = Promises()
        self.members: list[int] = []  # producers of open transactions
        self.next_member = _FIRST_MEMBER
        self.trace = trace
        self.facts: dict[str, int] = {}
        self.purgatory = Purgatory()
        self.waiting: list[tuple[Replica, Stored, DelayedProduce]] = []  # requests whose batches are not committed
        self.parked: list[Parked] = []
        self.clients = (HonestProducer(self), HonestReader(self))
        self._is_nested = False  # other steps run while an operation waits for the disk
        self._is_healing = False
        for replica in self.replicas:
            self._start(replica)
        self._elect()

    def run(self) -> dict[str, int]:
        """Runs the schedule to its end; returns how often each event occurred."""
        self._some_of(self.rng.randint(*_STEPS))
        self._heal()
        return self.facts

    def _some_of(self, count: int) -> None:
        actions = self._actions()
        names, weights = list(actions), [weight for weight, _ in actions.values()]
        for name in self.rng.choices(names, weights, k=count):
            actions[name][1]()
            self._check()

    def _meanwhile(self) -> None:
        """Runs other steps while a thread waits for the disk."""
        if not (self._is_nested or self._is_healing):
            self._is_nested = True
            if self.rng.random() < 0.5:
                self._depose()
            self._some_of(self.rng.choice((0, 1, 3, 8)))
            self._is_nested = False

    def _actions(self) -> dict[str, tuple[int, Callable[[], None]]]:
        return {
            "produce": (24, self._produce),
            "resend": (8, self._resend),
            "transaction": (8, self._write_in_transaction),
            "marker": (6, self._write_marker),
            "release": (3, self._release),
            "fetch": (20, self._fetch),
            "report": (10, self._report),
            "park": (6, self._park),
            "read": (12, self._read),
            "client": (24, self._client),
            "tell": (12, self._tell_some),
            "flush": (18, self._flush),
            "fail": (2, self._fail),
            "retain": (4, self._retain),
            "delete": (3, self._delete),
            "checkpoint": (4, self._checkpoint),
            "crash": (3, self._crash),
            "crash of all": (1, self._crash_all),
            "start": (5, self._start_one),
            "in sync": (5, self._change_in_sync),
            "election": (2, self._elect_another),
            "depose": (2, self._depose),
            "cut off": (2, self._cut_off),
            "time": (3, self._pass_time),
        }

    def count(self, fact: str) -> None:
        """Counts an event of the schedule."""
        self.facts[fact] = self.facts.get(fact, 0) + 1
        if self.trace is not None:
            self.trace.append(f"{fact}: {[list(replica.ends().values()) if replica.is_up else None for replica in self.replicas]}")

    # --- appends

    def _leader(self) -> Replica | None:
        """The leader, if it knows that it leads."""
        leader = self.leader
        if leader is None or not leader.is_up or leader.is_stopped or not leader.log.leads_in(self.epoch):
            return None
        return leader

    def _asked(self) -> Replica | None:
        """The replica that a client sends to: the leader or, now and then, any that believes it leads."""
        leader = self._leader()
        if leader is None or self.rng.random() < 0.2:
            believers = [replica for replica in self.replicas if replica.is_up and replica.log.is_leader]
            leader = self.rng.choice(believers) if believers else None
        return leader if leader is not None and not leader.log.is_stopped else None

    def _payload(self) -> bytes:
        return self.rng.randbytes(self.rng.choice((8, 60, 200, 500)))

    def _produce(self) -> None:
        producer_id = self.rng.randrange(-1, PRODUCERS)
        leader = self._asked()
        if leader is None:
            return
        if producer_id < 0:
            self._append(leader, raw_batch(self._payload(), count=self.rng.randint(1, 3)), None)
            return
        known = leader.oracle.state.get(producer_id)
        epoch, number = (known.epoch, known.next_number) if known is not None else (0, 0)
        kind = self.rng.random()
        if kind < 0.15:
            epoch, number = epoch + 1, 0
        elif kind < 0.22:
            epoch = max(epoch - 1, 0)
        elif kind < 0.28:
            number += self.rng.randint(1, 3)
        self._send(leader, ProducerIdAndEpoch(producer_id, epoch), number, self.rng.randint(1, 3))

    def _resend(self) -> None:
        leader = self._asked()
        if leader is not None and leader.oracle.state:
            producer_id, known = self.rng.choice(sorted(leader.oracle.state.items()))
            sent = self.rng.choice(known.batches)
            self._send(leader, ProducerIdAndEpoch(producer_id, known.epoch), sent.number, sent.record_count)

    def _send(self, leader: Replica, producer: ProducerIdAndEpoch, number: int, count: int) -> None:
        """Sends a batch of an idempotent producer; the oracle gives the expected result."""
        is_member = producer.producer_id in self.members
        attributes = int(Attributes.TRANSACTIONAL) if is_member else 0
        batch = raw_batch(self._payload(), count=count, producer=producer, sequence=number, attributes=attributes)
        if producer.producer_id >= _FIRST_MEMBER and not is_member:
            return
        self._append(leader, batch, leader.oracle.answer(*producer, number, count), is_member=is_member)

    def _append(
        self, leader: Replica, batch: RecordBatch, expected: int | type[WireError] | None, *, is_member: bool = False
    ) -> None:
        epoch = leader.log.leader_epoch
        found = self.append(leader, batch, expected, epoch=epoch, is_member=is_member)
        if isinstance(found, LogAppendInfo) and not found.is_duplicate:
            self.wait(leader, found, epoch)

    def append(
        self,
        leader: Replica,
        batch: RecordBatch,
        expected: int | type[WireError] | None,
        *,
        epoch: int,
        is_member: bool = False,
    ) -> LogAppendInfo | WireError:
        """A client's append in a leader epoch. `expected`: a base offset, an error, or None for a new batch."""
        stored = leader.stamped(batch.header, self.now_ms)
        self._fail_a_write(leader)
        info: LogAppendInfo | WireError
        try:
            log = leader.table.leader(TP, epoch)
            info = log.append(batch, now_wall_ms=self.now_ms, is_open_member=is_member)
            found: int | type[WireError] = info.base_offset
        except StorageError as error:
            if expected is not None:
                raise
            leader.note_failed(stored, error)
            self.count("write failed")
            return error
        except WireError as error:
            info, found = error, type(error)
        finally:
            leader.files.hook = None
        if expected is None and not isinstance(found, type):
            leader.note(stored)
            expected = stored.header.base_offset
        assert found == expected, f"{batch.header} is answered with {found}, not {expected}"
        self.count(found.__name__ if isinstance(found, type) else "appended" if leader.history[-1] is stored else "repeated")
        return info

    def wait(self, leader: Replica, info: LogAppendInfo, epoch: int) -> DelayedProduce:
        """A request that waits until all in-sync replicas hold its batch durably."""
        operation = DelayedProduce(_NEVER_MS, {0: Appended(leader.log, info.last_offset, epoch)}, _NOBODY)
        self.purgatory.try_complete_else_watch(operation)
        stored = next(stored for stored in reversed(leader.history) if stored.header.base_offset == info.base_offset)
        self.waiting.append((leader, stored, operation))
        return operation

    def _settle(self) -> None:
        """Records acknowledged batches: none may be lost or replaced later."""
        for _, stored, operation in self.waiting:
            if operation.is_completed:
                self.count("refused late" if operation.errors else "acknowledged")
                if not operation.errors:
                    self.promises.acknowledge(stored.header)
        self.waiting = [one for one in self.waiting if not one[2].is_completed]

    def _fail_a_write(self, leader: Replica) -> None:
        if self.rng.random() < 0.03:
            leader.fail(self.rng.choice(("pwritev", "create")))

    # --- transactions

    def _write_in_transaction(self) -> None:
        leader = self._asked()
        if leader is None:
            return
        if not self.members or self.rng.random() < 0.4:
            self.members.append(self.next_member)
            self.next_member += 1
        producer_id = self.rng.choice(self.members)
        known = leader.oracle.state.get(producer_id)
        producer = ProducerIdAndEpoch(producer_id, 0)
        if self.rng.random() < 0.1:
            stray = self.rng.choice((True, False))
            attributes = int(Attributes.TRANSACTIONAL) if stray else 0
            batch = raw_batch(b"", producer=producer, sequence=0, attributes=attributes)
            self._append(leader, batch, InvalidTxnStateError, is_member=not stray)
            return
        self._send(leader, producer, known.next_number if known is not None else 0, self.rng.randint(1, 3))

    def _write_marker(self) -> None:
        """Writes the marker of some transactions, sometimes of one without records here."""
        leader = self._asked()
        if leader is None or not self.members:
            return
        ended = tuple(sorted(self.rng.sample(self.members, self.rng.randint(1, len(self.members)))))
        split = self.rng.randint(0, len(ended))
        record = control_pb2.ControlRecord(
            committed_producer_ids=ended[:split], aborted_producer_ids=ended[split:], transactional_id="x"
        )
        batch = encode_control(record, TP, timestamp_ms=self.now_ms)
        stored = leader.stamped(batch.header, self.now_ms, ended, aborted=ended[split:])
        if self.rng.random() < 0.3:
            self._event(leader, lambda: leader.hold_back(ended))
            self.count("held back")
        try:
            leader.log.append_marker(batch, now_wall_ms=self.now_ms)
        except StorageError as error:
            leader.note_failed(stored, error)
            self.count("write failed")
            return
        leader.note(stored)
        self.members = [member for member in self.members if member not in ended]
        self.count("marker")

    def _release(self) -> None:
        leader = self._leader()
        if leader is not None and leader.held:
            commit = self.rng.choice(sorted(leader.held))
            self._event(leader, lambda: leader.release(commit))
            self.count("released")

    # --- durability

    def _flush(self) -> None:
        """Runs a flush, reports a finished one to the log, or both. The sync fails now and then."""
        up = [replica for replica in self.replicas if replica.is_up]
        if not up:
            return
        replica = self.rng.choice(up)
        log = replica.log
        if replica.task is None:
            task = log.prepare_flush()
            if task is None:
                return
            if self.rng.random() < 0.02:
                replica.fail("fdatasync")
            try:
                is_synced = run_flush(log, task)
            finally:
                replica.files.hook = None
            if not is_synced:
                self.count("sync failed")
                return
            replica.task = task
        if self.rng.random() < 0.7:
            self._complete(replica)

    def _complete(self, replica: Replica) -> None:
        task, replica.task = replica.task, None
        if task is not None:
            self._event(replica, lambda: replica.log.complete_flush(task))

    def _flush_all(self, replica: Replica) -> None:
        self._complete(replica)
        task = replica.log.prepare_flush()
        if task is not None:
            task.run()
            self._event(replica, lambda: replica.log.complete_flush(task))

    def _fail(self) -> None:
        """Appends a batch; the first truncate of a segment during it fails."""
        leader = self._asked()
        if leader is not None:
            leader.fail("truncate")
            self._append(leader, raw_batch(self._payload(), producer=NO_PRODUCER), None)

    def _event(self, replica: Replica, event: Callable[[], Moved]) -> None:
        """Checks that the event returns exactly the ends that it moved."""
        before = replica.ends()
        moved = event()
        after = replica.ends()
        expected = {end for end in LogEnd if before[end] != after[end]}
        assert set(moved) == expected, f"{moved} is said to have moved from {before} to {after}"

    # --- replication

    def _follower(self) -> Replica | None:
        """The other replica, if it can follow."""
        leader = self._leader()
        others = [replica for replica in self.replicas if replica is not self.leader and replica.is_up and not replica.is_stopped]
        return others[0] if leader is not None and others else None

    def _fetch(self) -> None:
        """The follower truncates diverging records and appends some of the leader's batches."""
        leader, follower = self._leader(), self._follower()
        if leader is None or follower is None or leader.is_being_cut or follower.is_being_cut:
            return
        if not self._is_told(follower):
            self._tell(follower)
        cuts = self.facts.get("cut")
        if not self._cut_what_diverges(leader, follower):
            return
        follower.agreed_epoch = self.epoch
        for batch in leader.read_all(follower.end):
            if self.rng.random() < 0.3:
                break
            self._fail_a_write(follower)
            stored = leader.history[len(follower.history)]
            try:
                follower.log.append_as_follower(batch)
            except StorageError as error:
                follower.note_failed(stored, error)
                self.count("write failed")
                break
            finally:
                follower.files.hook = None
            follower.note(stored)
            self.count("replicated")
        ends = leader.log.ends
        self._event(follower, lambda: follower.woken(follower.log.ends.leader_at(ends.high_watermark, ends.last_stable_offset)))
        if self.facts.get("cut") != cuts and not self._is_healing and self.rng.random() < 0.3:
            self._end(follower)  # while the batches that replaced the truncated ones are not synced

    def _cut_what_diverges(self, leader: Replica, follower: Replica) -> bool:
        """True if the follower's log is now a prefix of the leader's."""
        while True:
            log = follower.log
            epoch, end = end_of_epoch(leader.log.core, log.core.epochs.latest)
            _, own_end = end_of_epoch(log.core, epoch)
            cut = cut_offset(end, own_end)
            if cut >= log.ends.log_end_offset:
                return True
            self._flush_all(follower)
            (batch,) = [header for header, *_ in follower.history if header.base_offset <= cut <= header.last_offset]
            is_cut = self._cut(follower, self.rng.randint(cut, batch.last_offset), batch.base_offset)
            if not is_cut or self._leader() is not leader:
                return False

    def _cut(self, follower: Replica, offset: int, end: int) -> bool:
        """Truncates a log in the steps of `truncate`. `offset` is in the batch that begins at `end`. False if the replica crashed
        or the epoch ended meanwhile."""
        log, tenure = follower.log, follower.log.core.tenure
        steps = truncate({log: offset}, lambda: follower.write_checkpoint)
        failed: dict[Partition, Exception] = {}
        try:
            job = next(steps)
            while True:
                self._meanwhile()
                if not follower.runs(log) or not self._done(follower, job):
                    return False
                if log.core.tenure == tenure and log.ends.log_end_offset > end:
                    job = steps.send(None)
                    follower.cut_history(end)
                else:
                    job = steps.send(None)
        except StopIteration as done:
            failed = done.value
        if failed:
            assert isinstance(failed[log], NotLeaderError), failed
            self.count("cut given up")
            return False
        follower.forget_cut()
        self.count("cut")
        check_state(follower)
        return log.core.tenure == tenure == (Role.FOLLOWER, self.epoch)

    def _done(self, replica: Replica, job: Callable[[], object]) -> bool:
        """Runs a thread's job; False if the process is killed during it."""
        left = self.rng.choice((0, 1, 3, 6)) if not self._is_healing and self.rng.random() < 0.1 else -1

        def hook(operation: str, _path: str) -> None:
            nonlocal left
            if operation != "pread":
                left -= 1
                if left == -1:
                    raise Killed

        if left >= 0:
            replica.files.hook = hook
        try:
            job()
        except Killed:
            self.count("killed in a cut")
            self._end(replica)
            return False
        finally:
            replica.files.hook = None
        return True

    def _report(self) -> None:
        leader, follower = self._leader(), self._follower()
        if leader is not None and follower is not None and follower.agreed_epoch == self.epoch:
            end = reported_end(follower.log.core)
            self._event(leader, lambda: leader.log.replica_fetched(follower.number, end))

    # --- readers

    def _client(self) -> None:
        self.rng.choice(self.clients).step()

    def _park(self) -> None:
        """Parks a fetch: a follower's for the log end, a consumer's for the high watermark or the last stable offset."""
        replica = self._asked()
        if replica is None:
            return
        log, end = replica.log, self.rng.choice((LogEnd.LOG_END, LogEnd.HIGH_WATERMARK, LogEnd.LAST_STABLE_OFFSET))
        offset = log.ends.log_end_offset if end is LogEnd.LOG_END else log.ends.high_watermark
        waits = park(log, offset, offset, found_bytes=0, max_bytes=1 << 20)
        operation = DelayedFetch(_NEVER_MS, [waits], end=end, min_bytes=1, on_done=lambda: None)
        self.purgatory.try_complete_else_watch(operation)
        self.parked.append(Parked(replica, waits, end, operation))

    def _check_parked(self) -> None:
        """Checks that exactly the parked fetches that can be answered are completed."""
        self.parked = [one for one in self.parked if one.replica.runs(one.waits.partition)]
        for _, waits, end, operation in self.parked:
            log = waits.partition
            is_over = waits.fetch_offset < log.ends.log_start_offset or not log.leads_in(waits.leader_epoch)
            is_due = is_over or log.ends.of(end) > waits.fetch_offset
            assert operation.is_completed == is_due, f"a fetch at {waits.fetch_offset} that waits for the {end.value}: {is_due}"
        self.parked = [one for one in self.parked if not one.operation.is_completed]

    def _read(self) -> None:
        """A thread reads for a consumer or a follower, or does a look-up, while the disk is slow."""
        self._produce()
        self._check()
        up = [replica for replica in self.replicas if replica.is_up and replica.log.is_leader and not replica.is_being_cut]
        if not up or self._is_nested:
            return
        replica = self.rng.choice(up)
        log, ends, history = replica.log, replica.log.ends, replica.history[:]
        tenure, high_watermark = log.core.tenure, ends.high_watermark
        left = self.rng.choice((0, 0, 1, 3))

        def hook(operation: str, path: str) -> None:
            nonlocal left
            if operation == "pread" and path.endswith(".log"):
                left -= 1
                if left < 0:
                    replica.files.hook = None
                    self._meanwhile()

        kind = self.rng.choice(("consumer", "follower", "follower", "newest", "backlog", "reach"))
        below = LogEnd.LOG_END if kind == "follower" else LogEnd.HIGH_WATERMARK
        until = ends.of(below)
        offset = min(self.rng.choice((high_watermark, self.rng.randint(ends.log_start_offset, until))), until)
        replica.files.hook = hook
        try:
            if kind == "newest":
                log.look_ups.newest_offset(self.rng.randint(1, 20))
            elif kind == "backlog":
                log.look_ups.backlog(offset)
            elif kind == "reach":
                log.look_ups.reach(offset, until, 1_000)
            else:
                found = log.read(offset, below=below, max_bytes=self.rng.choice((1, 1 << 20)), cached_only=False)
                assert found.next_offset <= found.until_offset == until
                headers = [
                    batch.header._replace(header_crc=0)
                    for chunk in found.chunks
                    for batch in walk_batches(pa.py_buffer(chunk), SEED)
                ]
                wanted = [one.header for one in history if found.first_offset <= one.header.base_offset < found.next_offset]
                if replica.runs(log) and headers:
                    assert headers == wanted, f"read {headers}, not {wanted}"
        except OffsetOutOfRangeError:
            assert not replica.runs(log) or offset < ends.log_start_offset, "an offset in the log is out of range"
        except LogDamagedError:
            if replica.runs(log):
                raise
        except (NotLeaderError, OffsetNotAvailableError, StorageError) as error:
            self.count(f"{kind}: {type(error).__name__}")
            may_fail = log.core.tenure != tenure or offset < ends.log_start_offset or not replica.runs(log)
            if kind in ("consumer", "follower") and not may_fail:
                raise
        finally:
            replica.files.hook = None
        self.count(f"read by {kind}")

    def _change_in_sync(self) -> None:
        """The other replica leaves the in-sync set, or joins it if it has caught up."""
        leader, follower = self._leader(), self._follower()
        if leader is None or self.is_alone:
            return
        others = self.in_sync - {leader.number}
        if others:
            self.in_sync -= others
            self.count("left")
        elif follower is not None and follower.agreed_epoch == self.epoch:
            ends = leader.log.ends
            if follower.log.ends.durable_end < max(ends.high_watermark, leader.log.core.epoch_start_offset):
                return
            self.in_sync.add(follower.number)
            self.count("joined")
        self._event(leader, lambda: leader.woken(leader.log.ends.in_sync(self.in_sync - {leader.number})))

    def _elect(self) -> None:
        """Elects the first in-sync replica that is up, in a new epoch. It may learn of it later."""
        self.leader = next((r for r in self.replicas if r.number in self.in_sync and r.is_up and not r.is_stopped), None)
        if self.leader is None:
            return
        self.epoch += 1
        self.promises.begin_epoch(self.epoch)
        self.count("elected")
        if self.rng.random() < 0.7:
            self._tell(self.leader)

    def _is_told(self, replica: Replica) -> bool:
        return replica.log.leader_epoch == self.epoch and replica.log.core.role is not Role.NONE

    def _tell(self, replica: Replica) -> None:
        """Tells a replica the current leader and epoch."""
        log = replica.log
        replica.raise_epoch(self.epoch)
        if replica is not self.leader:
            log.follow(self.epoch)
            replica.held.clear()  # the leader knows what is held back
            return
        self._complete(replica)
        others = self.in_sync - {replica.number}
        self._event(replica, lambda: log.lead(self.epoch, InSync(others, len(others) + 1, len(self.replicas))))
        self.promises.check_nothing_is_lost(replica)

    def _tell_some(self) -> None:
        """Tells a replica the current epoch, or makes the leader resign."""
        untold = [one for one in self.replicas if one.is_up and not one.is_stopped and not self._is_told(one)]
        if untold and self.leader is not None:
            self._tell(self.rng.choice(untold))
        elif self.rng.random() < 0.05 and (leader := self._leader()) is not None:
            leader.log.resign()
            leader.held.clear()
            self._elect()

    def _elect_another(self) -> None:
        if self.leader is not None and not self.is_alone:
            self.replicas.reverse()
            self._elect()

    def _depose(self) -> None:
        """The other replica leads and appends some batches; soon the old leader follows it."""
        self._elect_another()
        for _ in range(self.rng.randint(1, 6)):
            self._tell_some()
            self._check()
            if self._leader() is not None:
                self._produce()
                self._check()
                self._fetch()
                self._check()
            self._client()

    def _cut_off(self) -> None:
        """The leader is cut off and another one elected. Some clients still reach the old leader."""
        self._elect_another()
        if self.leader is None or self.leader.is_stopped or self.is_alone:
            return
        if not self._is_told(self.leader):
            self._tell(self.leader)
        if len(self.in_sync) > 1:
            self._change_in_sync()
        self._flush_all(self.leader)
        for _ in range(self.rng.randint(1, 8)):
            self._produce()
            self._flush()
            self._check()
            self._client()

    # --- retention and deletion

    def _may_begin_at(self, replica: Replica, start: int) -> bool:
        """False if the other replica could no longer follow."""
        return all(other is replica or (other.is_up and other.log.ends.high_watermark >= start) for other in self.replicas)

    def _retain(self) -> None:
        up = [replica for replica in self.replicas if replica.is_up and not replica.is_stopped]
        if not up:
            return
        replica = self.rng.choice(up)
        core = replica.log.core
        start = core.retained_from(self.now_ms)
        if self._may_begin_at(replica, start):
            undecided = replica.first_undecided(core.ends.high_watermark)
            assert undecided is None or start <= max(undecided, core.ends.log_start_offset), "retention takes what is undecided"
            self._event(replica, lambda: replica.log.set_log_start(start))
        if self.rng.random() < 0.8:
            replica.write_checkpoint()
        if replica.remove_retired():
            self.count("segments removed")

    def _delete(self) -> None:
        leader = self._leader()
        if leader is None or leader.is_being_cut:
            return
        core = leader.log.core
        offset = self.rng.choice((HIGH_WATERMARK, self.rng.randint(core.ends.log_start_offset, core.ends.high_watermark)))
        try:
            target = core.deletion_target(offset)
        except OffsetNotAvailableError:  # a new leader does not know the high watermark yet: use an offset known to be below
            target = core.deletion_target(core.ends.high_watermark)
        if target > core.ends.log_start_offset and self._may_begin_at(leader, target):
            self._event(leader, lambda: leader.log.set_log_start(target))
            leader.write_checkpoint()
            self.count("records deleted")

    def _checkpoint(self) -> None:
        for replica in self.replicas:
            if replica.is_up and not replica.is_stopped:
                replica.write_checkpoint()

    def _pass_time(self) -> None:
        self.now_ms += self.rng.choice((10, 1_000, 20_000))

    # --- crashes and starts

    def _crash(self) -> None:
        up = [replica for replica in self.replicas if replica.is_up]
        if up:
            self._end(self.rng.choice(up))

    def _crash_all(self) -> None:
        """Crashes all replicas at once, so the in-sync set stays. The first one to return leads and does not know what was
        acknowledged."""
        for replica in self.replicas:
            if replica.is_up:
                self._lose(replica)
        self.leader = None
        self.count("all crashed")
        for _ in range(self.rng.randint(0, 6)):
            self._start_one()
            self._tell_some()
            self._fetch()
            self._report()
            self._check()
            self._client()

    def _lose(self, replica: Replica) -> None:
        is_power_cut = self.rng.random() < 0.6
        self._settle()
        self.waiting = [one for one in self.waiting if one[0] is not replica]
        replica.found_end = replica.crash(self.rng, is_power_cut=is_power_cut)
        self.count("power cut" if is_power_cut else "killed")

    def _end(self, replica: Replica) -> None:
        self._lose(replica)
        if replica.number in self.in_sync and len(self.in_sync) > 1:
            self.in_sync.discard(replica.number)
            leader = self._leader()
            if leader is not None and leader is not replica:
                self._event(leader, lambda: leader.woken(leader.log.ends.in_sync(())))
        if replica is self.leader:
            self._elect()

    def _start_one(self) -> None:
        for replica in self.replicas:
            if replica.is_up and replica.is_stopped:
                self._end(replica)
            if not replica.is_up:
                self._start(replica)
                if self.leader is None or self.leader is replica:
                    self._elect()
                return

    def _start(self, replica: Replica) -> None:
        durable_end = replica.found_end
        replica.start(is_alone=self.is_alone)
        end = replica.log.ends.log_end_offset
        assert end >= durable_end, f"the log ended durably at {durable_end}, and ends at {end}"
        replica.take_recovered(durable_end)
        check_state(replica)
        self.count("started")

    def _check(self) -> None:
        self._settle()
        self._check_parked()
        for replica in self.replicas:
            if replica.is_up:
                assert replica.log.damage is None, replica.log.damage
                self.promises.check_ends(replica, is_alone=self.is_alone)
                if self.rng.random() < 0.1:
                    check_state(replica)

    def _heal(self) -> None:
        """Starts all replicas and lets them converge: the high watermark must reach the log end, and segments below the log start
        must be removed."""
        self._is_healing = True
        while any(not replica.is_up or replica.is_stopped for replica in self.replicas):
            self._start_one()
        for _ in range(_ELECTIONS_MAX):
            if self._leader() is not None:
                break
            if self.leader is None:
                self._elect()
            assert self.leader is not None
            if not self._is_told(self.leader):
                self._tell(self.leader)
            elif not self.leader.log.is_leader:
                self._elect()
        leader = self._leader()
        assert leader is not None, "nobody leads"
        self._flush_all(leader)
        follower = self._follower()
        if follower is not None:
            for _ in range(_FETCHES_MAX):
                self._fetch()
                if follower.agreed_epoch == self.epoch and follower.end == leader.end:
                    break
            else:
                raise AssertionError("the follower never has all that its leader has")
            self._flush_all(follower)
            self._report()
            if follower.number not in self.in_sync:
                self._change_in_sync()
            self._report()
            self._fetch()
        for replica in self.replicas:
            for commit in sorted(replica.held):
                self._event(replica, lambda replica=replica, commit=commit: replica.release(commit))  # type: ignore[misc]
            assert replica.log.ends.high_watermark == replica.end, (
                f"stuck at {replica.log.ends.high_watermark}, short of {replica.end}"
            )
            self._event(replica, lambda replica=replica: replica.log.set_log_start(replica.end))  # type: ignore[misc]
            replica.write_checkpoint()
            replica.remove_retired()
            assert len(replica.log.segments) == 1, "segments below the log start stay for ever"
            check_state(replica)
        self._check()


def run_seed(seed: int) -> dict[str, int]:
    """Runs one schedule."""
    return Simulation(seed).run()
