"""Rarer, worse faults than replication_simulation.py's. They occur in a share of the seeds and have their own random generator, so
that the other seeds do not change.

- The coordination store rolls back: its members lost unsynced changes, or an older snapshot was restored. All nodes stop before and
  start after it, as docs/cluster.md says, or some keep running.
- A disk is full for a while and writes only part of a buffer, or it fails to read or write records. No log may stop for that,
  unless a write fails during a truncation. Everything works again once the disk has recovered.
- All in-sync copies are down, and an operator runs an unclean election. The records that the winner lacks are lost, but the copies
  that come back keep theirs."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from brokerd.cluster.election import no_copy_alive
from brokerd.cluster.keys import PartitionEntry
from brokerd.errors import BrokerdError
from brokerd.ids import NO_LEADER, TopicIdPartition
from brokerd.storage.names import LOG_SUFFIX

if TYPE_CHECKING:
    from tests.support.replication_nodes import Disk, Machine, Process
    from tests.support.replication_simulation import Simulation

_MADE_LATE_MS = 5_000  # how long after a command was given or ended its change may still be made
_ATTEMPTS = 8
_STUCK_MS = 4_000  # with all faults healed, a state that lasts this long is stuck


# By node, the state of its copy as an operator sees it; the greatest tuple is the newest copy.
Answers = dict[int, tuple[bool, bool, int, int]]


class _Command:
    """An operator's unclean election."""

    def __init__(self, tp: TopicIdPartition, process: Process, given_ms: int) -> None:
        self.tp = tp
        self.answers: Answers = {}
        self.ended_ms = 0  # 0: not yet
        self._process, self._given_ms = process, given_ms

    def may_be_made(self, now_ms: int) -> bool:
        """True while the command runs, and for a while after that, since a change may be made late."""
        is_under_way = not self.ended_ms and not self._process.is_dead
        return is_under_way or now_ms - max(self._given_ms, self.ended_ms) < _MADE_LATE_MS


class Disasters:
    """See the module."""

    def __init__(self, sim: Simulation, seed: int) -> None:
        self._sim = sim
        self._rng = random.Random(f"{seed}/disasters")
        self.lasts_ms = 3_000  # in addition to the other faults
        if self._rng.random() < 0.5:  # few other faults, so that a lasting one runs its full course
            sim.between_faults_ms, self.lasts_ms = (300, 2_500), 9_000
        self._kinds = self._rng.choice(self._choices())
        self._commands: list[_Command] = []  # given by an operator
        self._copies: dict[TopicIdPartition, int] = {}  # replica count of a partition before an operator removed some
        self._stuck_since_ms = 0
        self._down: set[int] = set()  # nodes that stay down

    def _choices(self) -> Sequence[Sequence[Callable[[], None]]]:
        """The kinds of faults that one seed may combine."""
        return [self._lose_seconds], [self._fill_disk, self._fail_reads, self._fail_writes], [self._lose_in_sync]

    def begin(self) -> None:
        """Schedules the first fault."""
        self._sim.after(self._rng.randint(200, 1_500), self._strike)

    def _strike(self) -> None:
        if not self._sim.is_healing:
            self._rng.choice(self._kinds)()
            self._sim.after(self._rng.randint(200, 2_500), self._strike)

    def _lose_seconds(self) -> None:
        """Stops one node, lets the others run without it, then rolls the store back to before the stop."""
        sim, rng = self._sim, self._rng
        since_ms, named = sim.now_ms, sim.entries[sim.some_tp()]
        first = sim.machines[rng.choice([replica.node_id for replica in named.isr])]
        if first.process is not None and rng.random() < 0.8:
            sim.crash(first)
            self._down.add(first.node_id)
        sim.after(rng.randint(300, 2_500), lambda: self._go_back(first, since_ms - rng.choice((0, 0, 20, 500))))

    def _go_back(self, first: Machine, to_ms: int) -> None:
        sim, rng = self._sim, self._rng
        self._down.discard(first.node_id)
        if sim.is_healing:
            return
        running_on = rng.choice((0, 0, 0.5, 1))
        for process in sim.lives():
            if rng.random() >= running_on:
                sim.crash(process.machine)
        if sim.store.go_back(to_ms, rng.choice((0, 0, 1_000_000))):
            sim.count("store went back")
            if sim.store.unaware:
                sim.count("store went back under nodes that run on")
            for client in sim.all_clients():
                client.forget_leader()
        late_ms = rng.choice((0, 1_500, 1_500, 2_500))  # a replica that was in sync to the end may start last
        for machine in sim.machines.values():
            sim.after(rng.randint(1, 500) + (late_ms if machine is not first else 0), partial(self._start, machine))

    def may_start(self, machine: Machine) -> bool:
        """False while a node must stay down."""
        return machine.node_id not in self._down

    def _start(self, machine: Machine) -> None:
        if machine.process is None and not self._sim.is_healing:
            self._sim.start(machine)

    def _lose_in_sync(self) -> None:
        """Takes down one in-sync copy, or all but one. Once they have left the in-sync set, takes down the rest and starts these
        again."""
        sim, rng = self._sim, self._rng
        tp = sim.some_tp()
        in_sync = [replica.node_id for replica in sim.entries[tp].isr]
        if len(in_sync) > 1 and not self._down:
            self._leave(tp, rng.sample(in_sync, rng.choice((1, len(in_sync) - 1))))

    def _leave(self, tp: TopicIdPartition, node_ids: Sequence[int]) -> None:
        sim, rng = self._sim, self._rng
        left = [sim.machines[node_id] for node_id in node_ids]
        for machine in left:
            sim.after(rng.choice((0, 0, 600)), partial(self._stays_down, machine))
        sim.after(rng.randint(700, 2_500), partial(self._only, tp, left, 10))

    def _stays_down(self, machine: Machine) -> None:
        if machine.process is not None and not self._sim.is_healing:
            self._sim.crash(machine)
        self._down.add(machine.node_id)

    def _only(self, tp: TopicIdPartition, left: Sequence[Machine], attempts: int) -> None:
        sim, rng = self._sim, self._rng
        lost = [sim.machines[replica.node_id] for replica in sim.entries[tp].isr]
        if not set(left).isdisjoint(lost) and attempts and not sim.is_healing:
            sim.after(300, partial(self._only, tp, left, attempts - 1))
            return
        self._down.difference_update(machine.node_id for machine in left)
        if sim.is_healing:
            return
        for machine in (each for each in lost if each not in left):
            self._stays_down(machine)
        for machine in left:
            self._start(machine)
        sim.after(rng.randint(500, 2_000), partial(self._command, tp, _ATTEMPTS))

    def _command(self, tp: TopicIdPartition, attempts: int) -> None:
        """An operator runs an unclean election, and retries if it fails."""
        sim, rng = self._sim, self._rng
        process = sim.any_process()

        async def elect(process: Process) -> None:
            command = _Command(tp, process, sim.now_ms)
            self._commands.append(command)
            try:
                await process.elect_unclean(tp, command.answers)
            except BrokerdError as error:
                sim.count(f"not elected unclean: {type(error).__name__}")
            command.ended_ms = sim.now_ms

        is_over = sim.is_healing or not attempts or (attempts < _ATTEMPTS and sim.entries[tp].leader != NO_LEADER)
        if is_over:
            down, self._down = self._down, set()
            for node_id in down:
                sim.after(rng.randint(1, 2_500), partial(self._start, sim.machines[node_id]))
            return
        if process is not None:
            process.enter(lambda: process.begin(elect(process)))
        sim.after(rng.randint(200, 600), partial(self._command, tp, attempts - 1))

    def check_winner(self, tp: TopicIdPartition, before: PartitionEntry, entry: PartitionEntry) -> None:
        """Checks the election of a copy that was not in sync."""
        commands = [each.answers for each in self._commands if each.tp == tp and each.may_be_made(self._sim.now_ms)]
        assert commands, "a copy leads that was not in sync, without a command"
        assert no_copy_alive(before, self._sim.image().nodes), "an unclean election while a copy in sync is alive"
        is_newest = any(entry.leader in one and one[entry.leader] == max(one.values()) for one in commands)
        assert is_newest, f"node {entry.leader} was elected, of {commands}"

    def _fill_disk(self) -> None:
        self._count(lambda disk: setattr(disk.files, "space_left", self._rng.choice((0, 0, 100, 2_000))), "disk full")

    def _fail_reads(self) -> None:
        self._count(lambda disk: self._trouble(disk, "pread", 0.5 if self._rng.random() < 0.3 else 1), "reads fail")

    def _fail_writes(self) -> None:
        self._count(lambda disk: self._trouble(disk, "pwritev", 0.5 if self._rng.random() < 0.3 else 1), "writes fail")

    def _trouble(self, disk: Disk, failing: str, share: float) -> None:
        def hook(operation: str, path: str) -> None:
            if operation == failing and path.endswith(LOG_SUFFIX) and not disk.is_read_by_test and self._rng.random() < share:
                raise OSError(errno.EIO, "Input/output error")

        disk.trouble = disk.files.hook = hook

    def _count(self, begin: Callable[[Disk], None], fact: str) -> None:
        """Trouble begins on one or two disks, mostly the leader's."""
        sim, rng = self._sim, self._rng
        lives, leader = sim.lives(), sim.leader(sim.some_tp())
        if leader is not None and rng.random() < 0.6:
            lives = [leader]
        for process in rng.sample(lives, min(len(lives), rng.choice((1, 1, 1, 2)))):
            begin(process.disk)
            process.may_stop |= fact == "writes fail"  # a failed write during a truncation, which cannot be undone
            sim.count(fact)
            sim.after(rng.choice((100, 600, 2_000, 7_000)), partial(self._recovers, process))

    def _recovers(self, process: Process) -> None:
        if process.is_dead:
            return
        process.disk.recovers()
        if process.logs.refusals.is_lasting:
            self._sim.count("trouble lasted")
        for partition in process.logs.partitions:
            has_stopped = partition.is_stopped and not partition.health.is_being_cut
            assert not has_stopped or process.may_stop, f"{partition.name} has stopped for a trouble that passed"

    # The operator's repair at the end

    def operate(self) -> None:
        """Removes replicas that report that they stay out of sync, and later restores the replica count."""
        sim = self._sim
        for tp in sim.tps:
            entry = sim.entries[tp]
            in_sync = {replica.node_id for replica in entry.isr}
            stuck = [node_id for node_id in entry.replicas if node_id not in in_sync and self._tells(tp, node_id)]
            wanted = self._copies.get(tp, 0)
            if sim.leader(tp) is None or (entry.target and not stuck):
                continue
            if len(entry.replicas) < wanted and len(in_sync) == len(entry.replicas):
                others = [node_id for node_id in sorted(sim.machines) if node_id not in entry.replicas]
                sim.move_to(tp, (*entry.replicas, *others[: wanted - len(entry.replicas)]))
                del self._copies[tp]
            elif stuck and self._is_lasting():
                self._copies[tp] = max(wanted, len(entry.replicas))
                sim.move_to(tp, tuple(node_id for node_id in entry.replicas if node_id not in stuck), is_instead=True)
                self._stuck_since_ms = 0
                sim.count("given up by an operator")

    def _is_lasting(self) -> bool:
        self._stuck_since_ms = self._stuck_since_ms or self._sim.now_ms
        return self._sim.now_ms - self._stuck_since_ms >= _STUCK_MS

    def _tells(self, tp: TopicIdPartition, node_id: int) -> bool:
        """True if a node has logged that it does not truncate its copy."""
        process = self._sim.machines[node_id].process
        copiers = process.copying._copiers.values() if process is not None else ()
        texts = [problem.text for copier in copiers if (problem := copier._problems.get(tp)) is not None]
        return any("below the high watermark" in text or "may have what no other has" in text for text in texts)
