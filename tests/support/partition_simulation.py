"""A partition on one or two replicas, seeded: `Simulation(seed).run()` raises AssertionError if its core breaks a promise.

Goal: what partition_promises.py checks, at every step. And every event says which ends it has moved, and no other.

Method: one leads, the other fetches, in epochs that a controller gives; random appends (new, repeated, wrong), transactions,
markers, flushes that are heard late or fail, writes that fail, rolls, retention, DeleteRecords, checkpoints, kills, power cuts,
elections.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from brokerd.config.topic import TopicConfig
from brokerd.errors import InvalidTxnStateError, StorageError, WireError
from brokerd.ids import NO_PRODUCER, ProducerIdAndEpoch
from brokerd.partition import flush_state
from brokerd.partition.core import HIGH_WATERMARK, Role
from brokerd.partition.log_ends import LogEnd, Moved
from brokerd.purgatory.purgatory import Purgatory
from brokerd.purgatory.timing_wheel import TimingWheel
from brokerd.record.batch import RecordBatch
from brokerd.record.control import encode_control
from brokerd.record.header import Attributes
from brokerd.server.waiting.delayed_produce import Appended, DelayedProduce
from brokerd.wire.v1 import control_pb2
from tests.support.build import raw_batch, run_flush
from tests.support.clock import START_WALL_MS
from tests.support.partition_promises import Promises, check_content, check_state, cut_offset, end_of_epoch, reported_end
from tests.support.partition_replica import TP, Replica, Stored

PRODUCERS = 3
_FIRST_MEMBER = 100
_STEPS = (40, 90)
_NEVER_MS = 10**9
_NOBODY: Any = SimpleNamespace(done=lambda: True)  # awaits a request: the operation says itself that it is settled


class Simulation:
    """See the module."""

    def __init__(self, seed: int, *, trace: list[str] | None = None) -> None:
        self.rng = rng = random.Random(seed)
        self.now_ms = START_WALL_MS
        self.epoch = 40 if seed % 2 else 1  # a partition's epochs may be far above the number of starts
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
        self.leader: Replica | None = None
        self.in_sync = {replica.number for replica in self.replicas}
        self.epoch_start = 0  # where the log ended when the leader's epoch began
        self.promises = Promises()
        self.members: list[int] = []  # producers of open transactions
        self.next_member = _FIRST_MEMBER
        self.trace = trace
        self.facts: dict[str, int] = {}
        self.purgatory = Purgatory(TimingWheel(tick_ms=1, wheel_size=20, start_ms=0))
        self.waiting: list[tuple[Replica, Stored, DelayedProduce]] = []  # requests whose batches are not settled
        for replica in self.replicas:
            self._start(replica)
        self._elect()

    def run(self) -> dict[str, int]:
        """To its end; returns how often what happened."""
        actions = self._actions()
        names, weights = list(actions), [weight for weight, _ in actions.values()]
        for name in self.rng.choices(names, weights, k=self.rng.randint(*_STEPS)):
            actions[name][1]()
            self._check()
        self._heal()
        return self.facts

    def _actions(self) -> dict[str, tuple[int, Callable[[], None]]]:
        return {
            "produce": (24, self._produce),
            "resend": (8, self._resend),
            "transaction": (8, self._write_in_transaction),
            "marker": (6, self._write_marker),
            "release": (3, self._release),
            "fetch": (20, self._fetch),
            "report": (10, self._report),
            "flush": (18, self._flush),
            "fail": (2, self._fail),
            "retain": (4, self._retain),
            "delete": (3, self._delete),
            "checkpoint": (4, self._checkpoint),
            "crash": (3, self._crash),
            "start": (5, self._start_one),
            "in sync": (5, self._change_in_sync),
            "election": (2, self._elect_another),
            "time": (3, self._pass_time),
        }

    def _count(self, fact: str) -> None:
        self.facts[fact] = self.facts.get(fact, 0) + 1
        if self.trace is not None:
            self.trace.append(f"{fact}: {[list(replica.ends().values()) if replica.is_up else None for replica in self.replicas]}")

    # --- appends

    def _leader(self) -> Replica | None:
        leader = self.leader
        return leader if leader is not None and leader.is_up and not leader.is_stopped else None

    def _payload(self) -> bytes:
        return self.rng.randbytes(self.rng.choice((8, 60, 200, 500)))

    def _produce(self) -> None:
        producer_id = self.rng.randrange(-1, PRODUCERS)
        leader = self._leader()
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
        leader = self._leader()
        if leader is not None and leader.oracle.state:
            producer_id, known = self.rng.choice(sorted(leader.oracle.state.items()))
            sent = self.rng.choice(known.batches)
            self._send(leader, ProducerIdAndEpoch(producer_id, known.epoch), sent.number, sent.record_count)

    def _send(self, leader: Replica, producer: ProducerIdAndEpoch, number: int, count: int) -> None:
        """A batch of an idempotent producer; the response must be the oracle's."""
        is_member = producer.producer_id in self.members
        attributes = int(Attributes.TRANSACTIONAL) if is_member else 0
        batch = raw_batch(self._payload(), count=count, producer=producer, sequence=number, attributes=attributes)
        if producer.producer_id >= _FIRST_MEMBER and not is_member:
            return
        self._append(leader, batch, leader.oracle.answer(*producer, number, count), is_member=is_member)

    def _append(
        self, leader: Replica, batch: RecordBatch, expected: int | type[WireError] | None, *, is_member: bool = False
    ) -> None:
        now_ms = self.now_ms
        stored = leader.stamped(batch.header, self.now_ms)
        self._fail_a_write(leader)
        try:
            info = leader.log.append(batch, now_wall_ms=now_ms, is_open_member=is_member)
            found: int | type[WireError] = info.base_offset
        except StorageError as error:
            if expected is not None:
                raise
            leader.note_failed(stored, error)
            self._count("write failed")
            return
        except WireError as error:
            found = type(error)
        finally:
            leader.files.hook = None
        if expected is None:
            leader.note(stored)
            expected = stored.header.base_offset
            self._wait(leader, stored)
        assert found == expected, f"{batch.header} is answered with {found}, not {expected}"
        self._count(found.__name__ if isinstance(found, type) else "appended" if leader.history[-1] is stored else "repeated")

    def _wait(self, leader: Replica, stored: Stored) -> None:
        """The batch's request waits until all in-sync replicas have it durably."""
        log = leader.log
        operation = DelayedProduce(_NEVER_MS, {0: Appended(log, stored.header.last_offset, log.leader_epoch)}, _NOBODY)
        self.purgatory.try_complete_else_watch(operation)
        self.waiting.append((leader, stored, operation))

    def _settle(self) -> None:
        """A batch that is acknowledged is never lost, nor is another one in its place."""
        for _, stored, operation in self.waiting:
            if operation.is_completed:
                self._count("refused late" if operation.errors else "acknowledged")
                if not operation.errors:
                    self.promises.acknowledge(stored.header)
        self.waiting = [one for one in self.waiting if not one[2].is_completed]

    def _fail_a_write(self, leader: Replica) -> None:
        if self.rng.random() < 0.03:
            leader.fail(self.rng.choice(("pwritev", "create")))

    # --- transactions

    def _write_in_transaction(self) -> None:
        leader = self._leader()
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
        """Ends some transactions, sometimes one that has nothing here."""
        leader = self._leader()
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
            self._count("held back")
        try:
            leader.log.append_marker(batch, now_wall_ms=self.now_ms)
        except StorageError as error:
            leader.note_failed(stored, error)
            self._count("write failed")
            return
        leader.note(stored)
        self.members = [member for member in self.members if member not in ended]
        self._count("marker")

    def _release(self) -> None:
        leader = self._leader()
        if leader is not None and leader.held:
            commit = self.rng.choice(sorted(leader.held))
            self._event(leader, lambda: leader.release(commit))
            self._count("released")

    # --- durability

    def _flush(self) -> None:
        """Runs a flush, or lets a log hear of one that is over; now and then both at once, or the sync fails."""
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
                self._count("sync failed")
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
        """The next thing that this replica writes fails in the middle."""
        leader = self._leader()
        if leader is not None:
            leader.fail("truncate")
            self._append(leader, raw_batch(self._payload(), producer=NO_PRODUCER), None)

    def _event(self, replica: Replica, event: Callable[[], Moved]) -> None:
        """The event says what it has moved."""
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
        """The follower agrees with its leader on what is before, and takes some batches."""
        leader, follower = self._leader(), self._follower()
        if leader is None or follower is None:
            return
        core = follower.log.core
        if core.leader_epoch < self.epoch or core.role is not Role.FOLLOWER:
            follower.raise_epoch(self.epoch)
            follower.log.follow(self.epoch)
        self._cut_what_diverges(leader, follower)
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
                self._count("write failed")
                break
            finally:
                follower.files.hook = None
            follower.note(stored)
            self._count("replicated")
        self._event(follower, lambda: core.ends.leader_at(leader.log.ends.high_watermark))

    def _cut_what_diverges(self, leader: Replica, follower: Replica) -> None:
        while True:
            epoch, end = end_of_epoch(leader.log.core, follower.log.core.epochs.latest)
            _, own_end = end_of_epoch(follower.log.core, epoch)
            cut = cut_offset(end, own_end)
            if cut >= follower.log.ends.log_end_offset:
                return
            self._flush_all(follower)
            (batch,) = [header for header, *_ in follower.history if header.base_offset <= cut <= header.last_offset]
            follower.log.truncate_to(self.rng.randint(cut, batch.last_offset))
            follower.cut_history(batch.base_offset)
            self._count("cut")
            check_state(follower)

    def _report(self) -> None:
        leader, follower = self._leader(), self._follower()
        if leader is not None and follower is not None and follower.agreed_epoch == self.epoch:
            end = reported_end(follower.log.core)
            self._event(leader, lambda: leader.log.core.ends.replica_at(follower.number, end))

    def _change_in_sync(self) -> None:
        """The other replica leaves, or joins if it has all that it must have."""
        leader, follower = self._leader(), self._follower()
        if leader is None or self.is_alone:
            return
        others = self.in_sync - {leader.number}
        if others:
            self.in_sync -= others
            self._count("left")
        elif follower is not None and follower.agreed_epoch == self.epoch:
            if follower.log.core.ends.durable_end < max(leader.log.ends.high_watermark, self.epoch_start):
                return
            self.in_sync.add(follower.number)
            self._count("joined")
        self._event(leader, lambda: leader.log.core.ends.in_sync(self.in_sync - {leader.number}))

    def _elect(self) -> None:
        """The first replica that is up and in sync leads, in an epoch of its own."""
        leader = next((r for r in self.replicas if r.number in self.in_sync and r.is_up and not r.is_stopped), None)
        self.leader = leader
        if leader is None:
            return
        self.epoch += 1
        self._complete(leader)
        others = self.in_sync - {leader.number}
        leader.raise_epoch(self.epoch)
        self._event(leader, lambda: leader.log.lead(self.epoch, others))
        self.epoch_start = leader.log.ends.log_end_offset
        self.promises.check_nothing_is_lost(leader)
        self._count("elected")

    def _elect_another(self) -> None:
        if self._leader() is not None and not self.is_alone:
            self.replicas.reverse()
            self._elect()

    # --- what goes

    def _may_begin_at(self, replica: Replica, start: int) -> bool:
        """False if the other replica could not follow any more."""
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
            self._count("segments removed")

    def _delete(self) -> None:
        leader = self._leader()
        if leader is None:
            return
        core = leader.log.core
        offset = self.rng.choice((HIGH_WATERMARK, self.rng.randint(core.ends.log_start_offset, core.ends.high_watermark)))
        target = core.deletion_target(offset)
        if target > core.ends.log_start_offset and self._may_begin_at(leader, target):
            self._event(leader, lambda: leader.log.set_log_start(target))
            leader.write_checkpoint()
            self._count("records deleted")

    def _checkpoint(self) -> None:
        for replica in self.replicas:
            if replica.is_up and not replica.is_stopped:
                replica.write_checkpoint()

    def _pass_time(self) -> None:
        self.now_ms += self.rng.choice((10, 1_000, 20_000))

    # --- ends and starts

    def _crash(self) -> None:
        up = [replica for replica in self.replicas if replica.is_up]
        if up:
            self._end(self.rng.choice(up))

    def _end(self, replica: Replica) -> None:
        is_power_cut = self.rng.random() < 0.6
        self._settle()
        self.waiting = [one for one in self.waiting if one[0] is not replica]
        replica.found_end = replica.crash(self.rng, is_power_cut=is_power_cut)
        self._count("power cut" if is_power_cut else "killed")
        if replica.number in self.in_sync and len(self.in_sync) > 1:
            self.in_sync.discard(replica.number)
            leader = self._leader()
            if leader is not None and leader is not replica:
                self._event(leader, lambda: leader.log.core.ends.in_sync(()))
        if replica is self.leader:
            self._elect()

    def _start_one(self) -> None:
        for replica in self.replicas:
            if replica.is_up and replica.is_stopped:
                self._end(replica)
            if not replica.is_up:
                self._start(replica)
                if self.leader is None:
                    self._elect()
                return

    def _start(self, replica: Replica) -> None:
        durable_end = replica.found_end
        replica.start(is_alone=self.is_alone)
        end = replica.log.ends.log_end_offset
        assert end >= durable_end, f"the log ended durably at {durable_end}, and ends at {end}"
        if end > replica.end and replica.doubtful is not None:
            replica.note(replica.doubtful)
        replica.doubtful = None
        assert end <= replica.end, f"nobody wrote what stands from {replica.end} to {end}"
        replica.cut_history(end)
        check_content(replica)
        check_state(replica)
        self._count("started")

    def _check(self) -> None:
        self._settle()
        for replica in self.replicas:
            if replica.is_up:
                self.promises.check_ends(replica, is_alone=self.is_alone)
                if self.rng.random() < 0.1:
                    check_state(replica)

    def _heal(self) -> None:
        """All are started, agree, and are durable: the high watermark reaches the end, and what may go goes."""
        while any(not replica.is_up or replica.is_stopped for replica in self.replicas):
            self._start_one()
        if self._leader() is None:
            self._elect()
        leader = self._leader()
        assert leader is not None
        self._flush_all(leader)
        follower = self._follower()
        if follower is not None:
            while follower.agreed_epoch < self.epoch or follower.end < leader.end:
                self._fetch()
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
