"""The parts that the handlers share, as one object, built by daemon.py. Makes no decisions."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

from brokerd.clock import Clock
from brokerd.cluster.image import Node
from brokerd.cluster.keys import Registration
from brokerd.config.broker import BrokerConfig
from brokerd.datadir.flusher import Flusher
from brokerd.datadir.log_manager import LogManager
from brokerd.datadir.topic_store import COORDINATOR_LOG, Topic
from brokerd.ids import TopicIdPartition
from brokerd.purgatory import TimedPurgatory
from brokerd.server.admin import Admin, Changes
from brokerd.server.cluster.alone import Alone
from brokerd.server.cluster.node import ClusterNode
from brokerd.server.coordinator.groups import Groups
from brokerd.server.coordinator.host import CoordinatorHost
from brokerd.server.coordinator.leaders import Leaders
from brokerd.server.coordinator.log import CoordinatorLog
from brokerd.server.coordinator.members import Members
from brokerd.server.coordinator.producer_ids import ProducerIds
from brokerd.server.coordinator.transactions import Outcomes, Transactions
from brokerd.server.limits.fence import InstanceFence
from brokerd.server.limits.response_budget import ResponseBudget, ResponseQueue
from brokerd.server.limits.threads import Threads
from brokerd.server.metrics.counters import Counters
from brokerd.server.security.audit import Audit
from brokerd.sharing import Budget, Shares, Turns

_WILDCARDS = ("0.0.0.0", "::", "[::]")  # noqa: S104 - compared with, not bound to
_READ_THREADS = 5  # for reads outside of the page cache; a single caller gets at most 4
_SEARCH_THREADS = 3  # a single caller gets at most 2
_READERS_PATIENCE_S = 0.5
_FLUSH_THREADS = 10  # each syncs one partition at a time; one principal gets eight at most
# Owner of all unsynced bytes: the logs count them, so that a failure leaves none counted by mistake. Producers still share them
# fairly, since freed bytes go to the next principal in turn, and flush threads are shared too.
_LOGS = ""


class BrokerParts:
    """One running node. Create it inside the running event loop, after `logs` is open. `cluster` None: a node without a cluster."""

    def __init__(self, config: BrokerConfig, logs: LogManager, clock: Clock, cluster: ClusterNode | None = None) -> None:
        self.config = config
        self.clock = clock
        self.cluster_id, self.node_id = logs.cluster_id, logs.node_id
        self.partitions = logs.partitions
        self.topics = logs.topics
        self.topic_changes = logs.changes
        self.retention = logs.retention
        self.time = logs.time
        self.counters = Counters()
        self.audit = Audit(clock)
        self.dirty = Budget(config.log_max_dirty_bytes)
        self.flusher = Flusher(threads=_FLUSH_THREADS, on_flush=self.counters.flushed)
        logs.resources.flush_soon = self.flusher.mark_dirty
        logs.resources.count_unsynced = partial(self.dirty.add, _LOGS)
        self.produce_purgatory = TimedPurgatory(clock)
        self.fetch_purgatory = TimedPurgatory(clock)
        self.admin = Admin()
        self.changes = Changes()
        self.outcomes = Outcomes()
        self.cluster: ClusterNode | Alone = cluster or Alone(
            lambda: Node(self.node_id, 0, Registration(*self.address(), logs.directory_id, config.rack)),
            logs.partitions,
            logs.changes,
            self.admin,
            self.forget_topic,
        )
        self.members = Members(logs.partitions, logs.time, self.produce_purgatory, self.cluster, lambda: self.coordinator.local)
        self.coordinator = CoordinatorHost(logs.partitions, self.members, partial(self._new_coordinator, logs))
        self.fence = InstanceFence(max_instances=config.max_producer_instances)
        self.in_flight = Budget(config.max_in_flight_bytes)
        self.response_queue = ResponseQueue()
        self.parked_partitions = Shares(config.max_parked_partitions)
        self.response_budget = ResponseBudget(config.max_fetch_bytes_in_flight, write_timeout_ms=config.fetch_write_timeout_ms)
        self.turns = Turns()
        self.readers = Threads(_READ_THREADS, "brokerd-read")
        # Separate pools for checking reads (one at a time, handlers/fetch.py) and look-ups by time, so that cold reads do not wait.
        self.checkers = Threads(1, "brokerd-check")
        self.searchers = Threads(_SEARCH_THREADS, "brokerd-search")
        self.port = 0
        self.is_stopping = False

    def address(self) -> tuple[str, int]:
        """This node's host and port for clients."""
        host = self.config.advertised_host or self.config.host
        return socket.gethostname() if host in _WILDCARDS else host, self.config.advertised_port or self.port

    def _new_coordinator(self, logs: LogManager) -> Transactions:
        log = CoordinatorLog(
            logs.partitions,
            self.cluster.topics.create_coordinator,
            logs.retention,
            logs.time,
            purgatory=self.produce_purgatory,
            admin=self.admin,
            clock=self.clock,
            unusable=logs.checkpoint_problem,
            is_current=partial(self.cluster.is_current_leader, COORDINATOR_LOG),
        )
        return Transactions(
            self.config,
            log,
            Leaders(self.cluster, self.members, lambda: log.leader_epoch),
            Groups(self.config, log, logs.topics, logs.time, self.cluster.has_topic),
            ProducerIds(log, logs.partitions, self.cluster.producer_numbers),
            self.clock,
            decided_members=logs.decided_members,
            outcomes=self.outcomes,
        )

    @property
    def transactions(self) -> Transactions:
        """The coordinator's transactions. Raises NotCoordinatorError, CoordinatorLoadInProgressError."""
        return self.coordinator.required

    @property
    def groups(self) -> Groups:
        """The coordinator's groups. Raises NotCoordinatorError, CoordinatorLoadInProgressError."""
        return self.coordinator.required.groups

    def forget_topic(self, topic: Topic) -> None:
        """Discards the state kept for a deleted topic."""
        self.counters.topics.pop(topic.id, None)
        self.coordinator.forget_topic(topic.id)
        for partition in range(topic.partition_count):
            self.members.forget(TopicIdPartition(topic.id, partition))

    def begin_stop(self) -> None:
        """Refuses new work from now on."""
        self.is_stopping = True
        self.admin.begin_stop()
        self.coordinator.begin_stop()

    def drop_waiting(self) -> None:
        """Drops queued responses, cancels parked fetches and force-completes waiting produce requests, so that the shutdown does
        not wait for them."""
        self.response_queue.drop()
        self.fetch_purgatory.cancel_all()
        self.produce_purgatory.force_complete()

    async def close(self) -> None:
        """Stops threads and timers; call it after all responses are out."""
        self.produce_purgatory.close()
        self.fetch_purgatory.close()
        await self.flusher.close()
        # Readers change nothing, so a slow one must not keep the logs open.
        pools = (self.readers, self.checkers, self.searchers)
        for threads in pools:
            threads.stop()
        ends = [asyncio.create_task(asyncio.to_thread(threads.join)) for threads in pools]
        await asyncio.wait(ends, timeout=_READERS_PATIENCE_S)
