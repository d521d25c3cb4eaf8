"""One node of a cluster: starts and stops the parts of this folder, and answers the request handlers' questions about the cluster.

`identify` runs before the data directory is opened, `join` after it. When `join` returns, the node is registered, and its directory
has acted on the image. alone.py has the same interface for a standalone node.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeVar

import grpc
from google.protobuf.message import Message

from brokerd.clock import Clock
from brokerd.cluster.changes import ABSENT
from brokerd.cluster.election import no_copy_alive
from brokerd.cluster.image import ClusterImage, Node
from brokerd.cluster.keys import (
    PARTITIONS_MAX,
    EntryError,
    Keys,
    PartitionEntry,
    Registration,
    decode_partition,
    decode_topic,
    number_of,
)
from brokerd.config.broker import BrokerConfig, coordination_endpoints
from brokerd.config.small_files import read_small_file
from brokerd.coordination.client import CoordinationClient
from brokerd.datadir.flusher import Flusher
from brokerd.datadir.log_manager import LogManager
from brokerd.datadir.log_time import DirectoryTime, Owed
from brokerd.datadir.node_state import ClusterIdentity, check_cluster, read_meta
from brokerd.datadir.topic_store import COORDINATOR, COORDINATOR_LOG, Topic
from brokerd.errors import (
    CoordinationError,
    CoordinatorNotAvailableError,
    Fate,
    NotReadyError,
    RequestTimedOutError,
    WireError,
    counted,
)
from brokerd.ids import NO_EPOCH, NO_LEADER, PRODUCER_NUMBERS, TopicIdPartition, address_of
from brokerd.internode.v1 import internode_pb2 as pb
from brokerd.partition.partition import Partition
from brokerd.server.admin import Admin
from brokerd.server.cluster.calls import NodeCalls, call_credentials
from brokerd.server.cluster.controller import Controller
from brokerd.server.cluster.directory import ClusterDirectory
from brokerd.server.cluster.membership import Membership, check_own, cluster_identity, for_ever, known_level
from brokerd.server.cluster.topics import ClusterTopics
from brokerd.server.paging import Pauses
from brokerd.server.replication.copying import Copying, Means
from brokerd.server.replication.leading import Leading, ReplicationFigures
from brokerd.sharing import CALLER, Budget
from brokerd.storage.files import Files

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Message)
_TOKEN_BYTES = 24
_STORE_AWAY_S = 5.0  # pause after five seconds of attempts
_PRODUCER_NUMBERS = 2**20  # reserved in the store at a time; a restart loses the unused ones
_LOG_TIME_S = 2.0  # limit for another node's answer
_POLL_S = 1.0  # between checks whether another registration has ended
_EXPIRY_S = 2  # etcd's delay in expiring a lease
_CURRENT_S = 0.5  # limit for the store's answer
_ASKED_ONE_BY_ONE = 10  # topics; beyond that, one read fetches all topics


class ClusterFigures(NamedTuple):
    """Metrics of the cluster as this node knows it, and of its calls to the coordination store."""

    nodes: int
    offline_partitions: int
    is_controller: bool
    is_registered: bool
    calls: int
    failed_calls: int
    call_seconds: float  # of the successful calls


class _Parts(NamedTuple):
    """The parts of a node that has joined, or is joining."""

    membership: Membership
    leading: Leading
    copying: Copying
    controller: Controller


class ClusterNode:
    """See the module docstring. Create it inside the running event loop."""

    def __init__(self, config: BrokerConfig, clock: Clock, *, waits: bool = True) -> None:
        """Does not connect yet. `waits`: start-up waits for an unreachable store. Raises ConfigError if a TLS file cannot be
        read."""
        self._config = config
        self._waits = waits
        self.is_waiting = False  # for the store or for its node id; nothing is open yet
        self._confirming = asyncio.Lock()
        self._checking = Budget(1)
        self._failed_checks = 0
        self._keys = Keys(config.cluster_name)
        self._client = coordination_client(config, clock)
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)  # other nodes present it; they are nodes because they can read the store
        self._calls = NodeCalls(config)
        self._is_new = False  # its data directory was not in use before
        self._parts: _Parts | None = None
        self.topics: ClusterTopics  # set by join()
        self._tasks: list[asyncio.Task[None]] = []
        self._differing: set[int] = set()  # nodes with a different auth file

    async def identify(self, files: Files) -> ClusterIdentity:
        """The cluster's identity, generated if this is its first node. Raises CoordinationError, DataDirectoryError."""
        await self._reach_store()
        meta, name = await asyncio.to_thread(read_meta, files), self._config.cluster_name
        if meta is not None and not meta.cluster_name:
            check_cluster(meta, ClusterIdentity(name, ""))  # raises: it is a standalone node's
        await known_level(self._client, self._keys)
        self._is_new = meta is None
        if self._is_new:  # else an existing registration may be of this directory
            self.is_waiting = True
            await self._await_own_id()
            self.is_waiting = False
        return await cluster_identity(self._client, self._keys, name, is_new=self._is_new)

    @property
    def _lease_s(self) -> int:
        return -(-self._config.broker_session_timeout_ms // 1_000)

    async def _reach_store(self) -> None:
        """Waits for an unreachable store: after a power cut it may start later than this node. Raises CoordinationError."""
        self.is_waiting = True
        while True:
            try:
                await self._client.check()
                break
            except CoordinationError as error:
                if not (self._waits and error.is_away):
                    raise
                servers = self._config.coordination_servers
                logger.warning("%s: waiting for it, as long as it takes (coordination.servers is %s)", error, servers)
                await asyncio.sleep(_STORE_AWAY_S)
        self.is_waiting = False

    async def _await_own_id(self) -> None:
        """Waits until this node's id is free, before a new directory takes it. A node that is registered under the id and does not
        answer has probably died and is being replaced: its registration ends with its lease. Raises CoordinationError.
        """
        node_id = self._config.node_id
        key = self._keys.node(node_id)
        for attempt in itertools.count():
            found = await self._client.get(key)
            if found is None:
                return
            image = ClusterImage(self._keys)
            image.put(*found)
            other = image.nodes.get(node_id)
            is_over = not self._waits or attempt > self._lease_s + _EXPIRY_S
            if is_over or other is None or (attempt == 0 and await self._log_time_of(other) is not None):
                check_own(found, node_id, "", self._lease_s)
                return
            if attempt == 0:
                address = address_of(other.registration.host, other.registration.port)
                logger.warning("node %d is registered at %s, and does not answer: waiting for that to end", node_id, address)
            await asyncio.sleep(_POLL_S)

    async def join(
        self,
        logs: LogManager,
        admin: Admin,
        flusher: Flusher,
        address: tuple[str, int],
        on_deleted: Callable[[Topic], None],
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        """Registers this node at its address for clients. Raises CoordinationError. `on_deleted`: see ClusterDirectory.
        `on_change` is called when leaders may have changed, after this node has taken its new roles."""
        auth = await asyncio.to_thread(self._auth_hash)
        registration = Registration(*address, logs.directory_id, self._config.rack, self.token, auth)
        membership = Membership(self._client, self._keys, logs.cluster_id, logs.node_id, registration, self._lease_s)
        lag_max_ms = self._config.replica_lag_time_max_ms
        leading = Leading(self._client, membership, logs.partitions, lag_max_ms, logs.refusals)
        directory = ClusterDirectory(
            self._client, membership, logs.topics, logs.partitions, logs.changes, logs.replicas, admin, on_deleted, leading.unable
        )
        copying = Copying(
            Means(logs.partitions, logs.replicas, membership, self._calls, flusher, admin, self._client.clock, leading.unable)
        )
        logs.partitions.leader_in_cluster = self._leader
        factor = self._config.default_replication_factor
        controller = Controller(self._client, membership, factor)
        self._parts = _Parts(membership, leading, copying, controller)
        self.topics = ClusterTopics(self._client, membership, directory, logs.topics, logs.changes, self.call, factor)
        registered = await self._registered()
        await self._check_not_copied(registered, address, logs.directory_id)
        await self._take_over_log_time(registered, logs.time)
        await membership.start()
        news = _News(membership, self._config.cluster_name)

        async def follow() -> None:
            seen = -1
            while True:
                seen = await directory.passed(seen)
                leading.follow_image()
                copying.follow_image()
                self._compare_auth()

        async def tell() -> None:  # apart from follow(): on_change may wait for a log to be replicated
            seen, roles = -1, (-1, -1)
            while True:
                seen = await directory.passed(seen)
                before, roles = roles, (logs.partitions.leads, membership.partition_changes)
                if roles != before:
                    await on_change()

        works = (directory.run, controller.run, follow, leading.run, tell, news.run)
        self._tasks = [asyncio.create_task(for_ever(each)) for each in works]
        await directory.passed(0)
        if self._is_new and self.image.topic(COORDINATOR.id) is None:
            # Now, so that every backup of etcd has it: after a restore without it, an empty one would be created.
            await self.topics.create_coordinator()

    async def _registered(self) -> Mapping[int, Node]:
        """The registered nodes, as the store has them now. Raises CoordinationError."""
        image = ClusterImage(self._keys)
        for item in (await self._client.read(f"{self._keys.prefix}nodes/")).items:
            image.put(*item)
        return image.nodes

    async def _check_not_copied(self, registered: Mapping[int, Node], address: tuple[str, int], directory_id: str) -> None:
        """Checks that no running node has a copy of this data directory: both would pass for the same replicas, and end each
        other's registration in turn. An earlier life of this directory cannot answer, since this process holds its lock. Raises
        CoordinationError."""
        own = registered.get(self.node_id)
        if own is None or own.registration.directory_id != directory_id:
            return
        host, port = own.registration.host, own.registration.port
        if (host, port) != address and await self._log_time_of(own) is not None:  # at its own address this node does not serve yet
            raise CoordinationError(
                f"node {self.node_id} is running at {address_of(host, port)} with a copy of this data directory: to add a node, "
                "set another node.id and an empty data.dir; to move this one, stop that node first"
            )

    async def _take_over_log_time(self, registered: Mapping[int, Node], time: DirectoryTime) -> None:
        """Takes over the log time of a live node, if one answers, before this node is registered and may lead."""
        others = [node for node_id, node in sorted(registered.items()) if node_id != self.node_id]
        for answered in await asyncio.gather(*map(self._log_time_of, others)):
            if answered is not None:
                time.take_over(answered.log_time_ms, Owed(answered.owed_ms, answered.rate))
                return

    async def _log_time_of(self, node: Node) -> pb.LogTimeResponse | None:
        try:
            async with asyncio.timeout(_LOG_TIME_S):
                return await self._calls.call(node, pb.LogTimeRequest(), pb.LogTimeResponse)
        except (TimeoutError, WireError) as error:
            logger.debug("node %d does not tell its log time: %s", node.id, error)
            return None

    async def reload(self) -> None:
        """Reloads the certificates for new connections to other nodes and to the store, and publishes the auth file's hash. Raises
        ConfigError, having changed nothing."""
        calls, store = await asyncio.to_thread(lambda: (call_credentials(self._config), _credentials(self._config)))
        self._calls.credentials, self._client.credentials = calls, store
        await self._membership.publish_auth(await asyncio.to_thread(self._auth_hash))

    async def hand_over(self) -> None:
        """Call before a stop: see Leading.hand_over. The node then follows the next leaders until `leave`."""
        if self._parts is not None:
            await self._parts.leading.hand_over()

    async def leave(self) -> None:
        """Stops all parts and ends the registration, so that the cluster need not wait for its lease to expire."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._parts is not None:
            await self._parts.copying.stop()
            await self._parts.membership.stop()
        await self._calls.close()
        await self._client.close()

    def _auth_hash(self) -> str:
        path = self._config.auth_file
        return hashlib.sha256(read_small_file(path, "auth.file")).hexdigest() if path else ""

    def _compare_auth(self) -> None:
        """Warns of nodes with a different auth file, once for each."""
        nodes = self.image.nodes
        own = nodes[self.node_id].registration.auth if self.node_id in nodes else None
        differing = {node.id for node in nodes.values() if own is not None and node.registration.auth != own}
        for node_id in sorted(differing - self._differing):
            logger.warning("node %d has another auth.file than this node: rights differ by the node that a client asks", node_id)
        self._differing = differing

    @property
    def _joined(self) -> _Parts:
        assert self._parts is not None, "it has joined"
        return self._parts

    @property
    def _membership(self) -> Membership:
        return self._joined.membership

    def replica_streams(self) -> tuple[Membership, Leading]:
        """The parts that serve the streams of followers. Raises NotReadyError before `join`."""
        if self._parts is None:
            raise NotReadyError("this node has not joined the cluster yet")
        return self._parts.membership, self._parts.leading

    # For request handlers

    @property
    def image(self) -> ClusterImage:
        """The cluster as this node knows it."""
        return self._membership.image

    @property
    def controller_id(self) -> int:
        """The controller's node id; NO_LEADER if there is none."""
        return self.image.controller

    def figures(self) -> ClusterFigures:
        """See ClusterFigures."""
        return ClusterFigures(
            len(self.image.nodes),
            sum(at.entry.leader == NO_LEADER for _, at in self.image.partitions()),
            self.is_registered and self.controller_id == self.node_id,  # it holds no elections without its lease
            self.is_registered,
            self._client.calls,
            self._client.failed_calls,
            self._client.call_ns / 1e9,
        )

    async def replication_figures(self, pauses: Pauses) -> ReplicationFigures:
        """See ReplicationFigures."""
        if self._parts is None:
            return ReplicationFigures()
        figures = await self._parts.leading.figures(pauses)
        return figures._replace(elections=self._parts.controller.elections, bytes_in=self._parts.copying.bytes_in)

    def nodes(self) -> Sequence[Node]:
        """All live nodes, sorted by id."""
        return [self.image.nodes[node_id] for node_id in sorted(self.image.nodes)]

    def partition(self, tp: TopicIdPartition) -> PartitionEntry | None:
        """A partition's entry; None if this node does not know the partition."""
        found = self.image.partition(tp)
        return found.entry if found is not None else None

    def has_in_sync(self, tp: TopicIdPartition) -> bool:
        """True if this node's copy of a partition is in sync."""
        entry = self.partition(tp)
        return entry is not None and any(replica.node_id == self.node_id for replica in entry.isr)

    def _leader(self, tp: TopicIdPartition) -> tuple[int, int, str]:
        entry = self.partition(tp)
        # Called for partitions that this node does not lead. If it is the elected leader, it will lead in a moment.
        if entry is None or entry.leader == self.node_id:
            return NO_LEADER, NO_EPOCH, ""
        return entry.leader, entry.leader_epoch, no_copy_alive(entry, self.image.nodes) if entry.leader == NO_LEADER else ""

    async def is_current_leader(self, tp: TopicIdPartition, epoch: int) -> bool:
        """Reads in the store whether this node leads a partition in this epoch. False also if the store does not answer at
        once."""
        if not self.is_registered:
            return False
        try:
            async with asyncio.timeout(_CURRENT_S):
                found = await self._client.get(self.image.keys.partition(tp))
            entry = decode_partition(found.value) if found is not None else None
            return entry is not None and (entry.leader, entry.leader_epoch) == (self.node_id, epoch)
        except (CoordinationError, EntryError, TimeoutError):
            return False

    async def is_confirmed_leader(self, tp: TopicIdPartition, epoch: int) -> bool:
        """As `is_current_leader`, for readers: concurrent callers make one store call at a time."""
        async with self._confirming:
            return await self.is_current_leader(tp, epoch)

    async def find_coordinator(self) -> Node:
        """The coordinator of transactions and groups: the leader of the coordinator's log, which is created if missing. Raises
        CoordinatorNotAvailableError, and the errors of ClusterTopics.create_coordinator.
        """
        if self.image.topic(COORDINATOR.id) is None:
            await self.topics.create_coordinator()
        entry = self.partition(COORDINATOR_LOG)
        node = self.image.nodes.get(entry.leader) if entry is not None else None
        if node is None:
            raise CoordinatorNotAvailableError(
                "the coordinator of transactions and groups has no leader at present: the node that has its log is not alive"
            )
        return node

    async def producer_numbers(self, at_least: int) -> tuple[int, int]:
        """Reserves producer numbers, `at_least` or above, for this coordinator: first and end (exclusive). Raises NotReadyError."""
        key = self._keys.producer_ids
        while True:
            try:
                found = await self._client.get(key)
                given = number_of(found.value.decode(errors="replace"), PRODUCER_NUMBERS) if found is not None else 0
                first = max(at_least, given)
                end = min(first + _PRODUCER_NUMBERS, PRODUCER_NUMBERS)
                compares = {key: found.mod_revision if found is not None else ABSENT}
                if await self._client.transact(compares, {key: str(end).encode()}) is not None:
                    return first, end
            except (CoordinationError, EntryError) as error:
                raise NotReadyError(f"{error}: no producer ids can be given at present", fate=Fate.NOT_APPENDED) from error

    async def check_deleted(self, tps: Collection[TopicIdPartition]) -> set[bytes]:
        """Checks in the store that partitions unknown to this node are deleted rather than new: the directory lags behind the
        store, by long if this node is cut off. Returns the deleted topics: a topic without such a partition may be new. Concurrent
        callers take turns, since a request may name any topics. Raises NotReadyError, also if the store does not answer, or did not
        answer another caller meanwhile: each would wait as long again.
        """
        keys = {self._keys.topic(topic_id) for topic_id, _ in tps}
        caller, failed = CALLER.get(), self._failed_checks
        await self._checking.take(caller, 1)
        try:
            if self._failed_checks > failed:
                raise NotReadyError("etcd does not answer: whether a topic is deleted is not known", fate=Fate.NOT_APPENDED)
            if len(keys) <= _ASKED_ONE_BY_ONE:
                found = [await self._client.get(key) for key in keys]
            else:
                found = [*(await self._client.read(self._keys.topics)).items]
        except CoordinationError as error:
            self._failed_checks += 1
            raise NotReadyError(f"{error}: whether a topic is deleted is not known at present", fate=Fate.NOT_APPENDED) from error
        finally:
            self._checking.add(caller.owner, -1)
        stored = {item.key: item.value for item in found if item is not None}
        for topic_id, number in tps:
            value = stored.get(self._keys.topic(topic_id))
            if value is not None and number < _partition_count(value):
                text = f"this node has not heard of partition {number} of topic {topic_id.hex()} yet: try again"
                raise NotReadyError(text, fate=Fate.NOT_APPENDED)
        return {topic_id for topic_id, _ in tps if self._keys.topic(topic_id) not in stored}

    async def has_log_start(self, partition: Partition, timeout_s: float) -> None:
        """Waits until all in-sync replicas have the partition's log start durably. Raises RequestTimedOutError,
        NotLeaderError."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._joined.leading.has_log_start(partition, partition.ends.log_start_offset)
        except TimeoutError:
            text = f"{partition.name}: the log start has moved, but not all in-sync replicas have it yet"
            raise RequestTimedOutError(text, fate=Fate.UNKNOWN) from None

    # The Peers protocol (coordinator/members.py)

    @property
    def node_id(self) -> int:
        """This node's id."""
        return self._config.node_id

    def leader_of(self, tp: TopicIdPartition) -> int:
        """The node id of a partition's leader; NO_LEADER if there is none."""
        entry = self.partition(tp)
        return entry.leader if entry is not None else NO_LEADER

    def leaders(self) -> Collection[int]:
        """All live nodes, since each may lead partitions."""
        return self.image.nodes.keys()

    @property
    def is_registered(self) -> bool:
        """True while other nodes consider this node alive, as far as it knows."""
        return self._membership.is_registered

    def has_topic(self, topic_id: bytes) -> bool:
        """True if the cluster has this topic, even if this node's directory does not have it yet."""
        return self.image.topic(topic_id) is not None

    async def call(self, node_id: int, request: Message, response_type: type[R]) -> R:
        """See NodeCalls.call. Raises NotReadyError if the node is not alive, or if its registration ends before it answers."""
        node = self.image.nodes.get(node_id)
        if node is None:
            raise NotReadyError(f"node {node_id} is not alive")
        call = asyncio.ensure_future(self._calls.call(node, request, response_type))
        end = asyncio.ensure_future(self._end(node))  # a hung node loses its lease
        try:
            await asyncio.wait((call, end), return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise NotReadyError(f"node {node_id} has ended without an answer")
            return await call
        finally:
            call.cancel()
            end.cancel()

    async def _end(self, node: Node) -> None:
        """Waits until this life of a node, one registration, has ended."""
        generation = self._membership.generation
        while (known := self.image.nodes.get(node.id)) is not None and known.epoch == node.epoch:
            generation = await self._membership.after(generation)


def _partition_count(topic: bytes) -> int:
    """The partition count in a stored topic; PARTITIONS_MAX if the value is unreadable."""
    try:
        return decode_topic(topic).partition_count
    except EntryError:
        return PARTITIONS_MAX


def coordination_client(config: BrokerConfig, clock: Clock) -> CoordinationClient:
    """A client of the cluster's etcd, not connected yet. Raises ConfigError."""
    return CoordinationClient(coordination_endpoints(config.coordination_servers), clock, credentials=_credentials(config))


def _credentials(config: BrokerConfig) -> grpc.ChannelCredentials | None:
    if not config.coordination_ssl_ca_file:
        return None
    certificate = key = None
    if config.coordination_ssl_certificate_file:
        certificate = read_small_file(config.coordination_ssl_certificate_file, "coordination.ssl.certificate.file")
        key = read_small_file(config.coordination_ssl_key_file, "coordination.ssl.key.file")
    authorities = read_small_file(config.coordination_ssl_ca_file, "coordination.ssl.ca.file")
    return grpc.ssl_channel_credentials(authorities, key, certificate)


class _News:
    """Logs what this node's image shows of the cluster: nodes that join and leave, and changes of the controller."""

    def __init__(self, membership: Membership, cluster_name: str) -> None:
        self._membership = membership
        self._cluster_name = cluster_name
        self._nodes: dict[int, Node] | None = None  # as last logged; None before the first time
        self._controller = NO_LEADER
        self._node_epoch = 0  # of the registration last logged

    async def run(self) -> None:
        """Follows the image, until cancelled."""
        generation = -1
        while True:
            generation = await self._membership.after(generation)
            self._look_at_registration()
            self._look_at_nodes(self._membership.image)
            self._look_at_controller(self._membership.image)

    def _look_at_registration(self) -> None:
        life = self._membership.life
        if life is not None and life.node_epoch != self._node_epoch:
            self._node_epoch = life.node_epoch
            logger.info("registered as node %d in cluster '%s'", life.node_id, self._cluster_name)

    def _look_at_nodes(self, image: ClusterImage) -> None:
        own, before, now = self._membership.node_id, self._nodes, dict(image.nodes)
        self._nodes = now
        if before is None:
            others = ", ".join(str(node_id) for node_id in sorted(now) if node_id != own)
            logger.info("the cluster has %s%s", counted(len(now), "node"), f": besides this one {others}" if others else "")
            return
        for node_id in sorted(before.keys() - now.keys() - {own}):
            logger.warning("node %d at %s is gone", node_id, _address(before[node_id]))
        for node_id, node in sorted(now.items()):
            if node_id != own and (node_id not in before or before[node_id].epoch != node.epoch):
                again = " again" if node_id in before else ""
                logger.info("node %d at %s has joined%s", node_id, _address(node), again)

    def _look_at_controller(self, image: ClusterImage) -> None:
        if image.controller != self._controller:
            self._controller = image.controller
            if image.controller == self._membership.node_id:
                logger.info("this node is the controller")
            elif image.controller != NO_LEADER:
                logger.info("node %d is the controller", image.controller)


def _address(node: Node) -> str:
    return address_of(node.registration.host, node.registration.port)
