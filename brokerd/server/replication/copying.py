"""The partitions that this node follows: one Copier, with one stream, for each node that leads any of them.

Each round reports this node's positions to the leader, appends the response's batches byte for byte, and makes them durable. The
durable end in a report has been fsynced, and a report never waits for data. Cutting a copy or starting it over takes its turn with
all other changes of the directory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import grpc
import grpc.aio
import pyarrow as pa
from google.protobuf.message import DecodeError

from brokerd.clock import Clock
from brokerd.cluster.image import Node
from brokerd.datadir.flusher import Flusher
from brokerd.datadir.partition_table import PartitionTable
from brokerd.datadir.replica_changes import ReplicaChanges
from brokerd.errors import BrokerdError, CorruptMessageError, NotReadyError, WireError
from brokerd.event_loop import end_if_cancelled
from brokerd.ids import NO_EPOCH, TopicIdPartition
from brokerd.internode.v1 import internode_pb2 as pb
from brokerd.partition.core import Role
from brokerd.partition.derived_files import decode_snapshot
from brokerd.partition.log_state import Snapshot
from brokerd.partition.partition import Partition
from brokerd.record.batch import walk_batches
from brokerd.replication.follower import Common, Position, cut_offset, position_of
from brokerd.server.admin import Admin
from brokerd.server.cluster.calls import NodeCalls
from brokerd.server.cluster.membership import Membership
from brokerd.server.failures import internal, to_its_end
from brokerd.sharing import BROKER
from brokerd.storage.checksummed_file import DocumentError
from brokerd.wire.errors import from_proto
from brokerd.wire.records import split_records
from brokerd.wire.texts import in_plain_words, plain_text

logger = logging.getLogger(__name__)

_RETRY_S = 0.2
_RETRY_MS = 200
_PASSES_WITHIN_MS = 10_000  # a retriable problem is logged once it has lasted this long
_FLUSHES = 3  # in a row: the one under way, which may have begun before the append, the next, and one more


class Means(NamedTuple):
    """What all copiers of a node share. `unable` collects the partitions that cannot follow: their log has stopped, or the disk
    refuses the leader's batches."""

    partitions: PartitionTable
    replicas: ReplicaChanges
    membership: Membership
    calls: NodeCalls
    flusher: Flusher
    admin: Admin
    clock: Clock
    unable: set[TopicIdPartition]


@dataclass(slots=True)
class _Problem:
    """Why a partition is not copied."""

    text: str
    since_ms: int
    is_told: bool = False


class Copying:
    """All copiers of this node; see the module docstring."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._copiers: dict[int, Copier] = {}  # by the leader's node id
        self._ended_bytes = 0  # copied by copiers that have ended

    def follow_image(self) -> None:
        """Copies from the leaders named in the image. Call it after each change of the image or of roles."""
        image = self._means.membership.image
        wanted: dict[int, dict[TopicIdPartition, int]] = {}
        for partition in self._means.partitions:
            at = image.partition(partition.tp)
            if partition.role is Role.FOLLOWER and at is not None and at.entry.leader_epoch == partition.leader_epoch:
                wanted.setdefault(at.entry.leader, {})[partition.tp] = partition.leader_epoch
        for node_id, copier in list(self._copiers.items()):
            node = image.nodes.get(node_id)
            # The stream to a node's earlier registration stays silent if its machine lost power.
            if node_id not in wanted or (node is not None and copier.node_epoch not in {node.epoch, NO_EPOCH}):
                del self._copiers[node_id]
                copier.stop()
                self._ended_bytes += copier.bytes_in
        for node_id, epochs in wanted.items():
            if node_id not in self._copiers:
                self._copiers[node_id] = Copier(node_id, self._means)
            self._copiers[node_id].assign(epochs)

    @property
    def bytes_in(self) -> int:
        """Bytes of batches copied by this node."""
        return self._ended_bytes + sum(copier.bytes_in for copier in self._copiers.values())

    async def stop(self) -> None:
        """Ends all copiers."""
        copiers, self._copiers = list(self._copiers.values()), {}
        for copier in copiers:
            copier.stop()
        await asyncio.gather(*(copier.task for copier in copiers), return_exceptions=True)


class Copier:
    """Copies the partitions that one node leads."""

    def __init__(self, node_id: int, means: Means) -> None:
        self._node_id = node_id
        self._partitions, self._replicas, self._membership = means.partitions, means.replicas, means.membership
        self._calls, self._flusher, self._admin = means.calls, means.flusher, means.admin
        self._clock, self._unable = means.clock, means.unable
        self._epochs: dict[TopicIdPartition, int] = {}  # of the partitions to copy
        self._touched: set[TopicIdPartition] = set()  # partitions whose position may have changed since it was sent
        self._sent: dict[TopicIdPartition, Position] = {}  # what the leader knows from the current stream
        self._paused: dict[TopicIdPartition, int] = {}  # failed partitions: when to ask again, in monotonic ms
        self._problems: dict[TopicIdPartition, _Problem] = {}  # of partitions whose last attempt failed
        self._behind: set[TopicIdPartition] = set()  # partitions whose log starts are not durable
        self._write_again_ms = 0  # monotonic; set when a checkpoint could not be written
        self._is_warned = False  # of that failure
        self.bytes_in = 0  # of copied batches
        self.node_epoch = NO_EPOCH  # the leader's registration that the stream is for
        self.task = asyncio.create_task(self._run())

    def assign(self, epochs: dict[TopicIdPartition, int]) -> None:
        """Sets the partitions to copy, with the leader epochs in which this node follows."""
        self._touched.update(tp for tp, epoch in epochs.items() if self._epochs.get(tp) != epoch)
        self._epochs = epochs

    def stop(self) -> None:
        """Cancels the copier's task."""
        self.task.cancel()

    async def _run(self) -> None:
        problem = ""
        while True:
            node = self._membership.image.nodes.get(self._node_id)
            try:
                if node is None:
                    raise NotReadyError(f"node {self._node_id} is not alive")
                try:
                    await self._follow(node)
                # Raised by gRPC if the stream ends between rounds, or its connection is closed for a newer address or certificate.
                except (asyncio.InvalidStateError, asyncio.CancelledError) as error:
                    end_if_cancelled()
                    raise NotReadyError(f"the stream to node {node.id} has ended") from error
            except (grpc.RpcError, grpc.aio.BaseError, BrokerdError, DecodeError) as error:
                end_if_cancelled()
                text = in_plain_words(error.details() or "") if isinstance(error, grpc.aio.AioRpcError) else plain_text(str(error))
                if text != problem:
                    logger.info("copies from node %d wait: %s", self._node_id, text)
                    problem = text
            except Exception as error:
                internal(f"copies from node {self._node_id}", error)
            await asyncio.sleep(_RETRY_S)

    async def _follow(self, node: Node) -> None:
        """Runs rounds on one stream until it fails."""
        self.node_epoch = node.epoch
        call = await self._calls.replicate(node)
        self._sent.clear()
        self._touched = set(self._epochs)
        try:
            while True:
                await call.write(self._request().SerializeToString())
                data = await call.read()
                if not isinstance(data, bytes):
                    raise NotReadyError(f"node {node.id} has ended the stream")
                await self._take(data)
        finally:
            call.cancel()

    def _request(self) -> pb.ReplicateRequest:
        membership, now_ms = self._membership, self._clock.monotonic_ms()
        life = membership.last_life
        if life is None:
            raise NotReadyError("this node is not registered yet")
        request = pb.ReplicateRequest(node_id=life.node_id, node_epoch=life.node_epoch)
        for tp in self._sent.keys() - self._epochs.keys():
            del self._sent[tp]
            request.dropped.add(topic_id=tp.topic_id, partition=tp.partition)
        self._paused = {tp: until_ms for tp, until_ms in self._paused.items() if until_ms > now_ms}
        touched, self._touched = self._touched, self._touched & self._paused.keys()
        for tp in touched - self._touched:
            partition = self._partitions.replica(tp)
            if tp not in self._epochs or partition is None or partition.role is not Role.FOLLOWER:
                continue
            if partition.is_stopped:  # the leader must not wait for this copy, or let it join again
                if self._sent.pop(tp, None) is not None:
                    request.dropped.add(topic_id=tp.topic_id, partition=tp.partition)
                self._unable.add(tp)
                continue
            if partition.is_dirty:
                self._touched.add(tp)  # becomes durable without another response
            position = position_of(partition, self._replicas.durable_log_start(tp))
            if self._sent.get(tp) != position:
                self._sent[tp] = position
                request.positions.add(topic_id=tp.topic_id, partition=tp.partition, **position._asdict())
        return request

    async def _take(self, data: bytes) -> None:
        """Carries out a response, and makes its batches durable."""
        response, records = split_records(pb.ReplicateResponse, data)
        at, taken = 0, list[Partition]()
        for update in response.updates:
            chunks = records[at : at + update.record_chunks]
            at += update.record_chunks
            tp = TopicIdPartition(update.topic_id, update.partition)
            self._touched.add(tp)
            partition = self._followed(tp)
            if partition is None:
                continue  # its role or leader has changed
            try:
                await self._carry_out(partition, update, chunks)
                taken.append(partition)
            except (WireError, ValueError, OSError, DocumentError) as error:
                self._fail(partition, error)
            else:
                self._problems.pop(tp, None)
        await asyncio.gather(*(self._make_durable(partition) for partition in taken if partition.is_dirty))
        await self._keep_log_starts(taken)

    async def _keep_log_starts(self, taken: Sequence[Partition]) -> None:
        """Makes log starts durable. A failed checkpoint does not hold up copying: it is retried, or the next one covers it."""
        replica, now_ms = self._partitions.replica, self._clock.monotonic_ms()
        self._touched |= self._behind  # a checkpoint may have been written meanwhile
        self._behind = {
            tp
            for tp in (*self._behind, *(partition.tp for partition in taken))
            if (one := replica(tp)) is not None and one.ends.log_start_offset > self._replicas.durable_log_start(tp)
        }
        if self._behind and now_ms >= self._write_again_ms:
            try:
                await asyncio.to_thread(self._replicas.checkpoint_now())
            except OSError as error:
                self._write_again_ms = now_ms + _RETRY_MS
                if not self._is_warned:
                    logger.warning("the log starts of copies cannot be written (%s): retrying", error.strerror)
                self._is_warned = True
            else:
                self._is_warned = False

    async def _make_durable(self, partition: Partition) -> None:
        for _ in range(_FLUSHES):
            if partition.is_dirty:
                await self._flusher.flush(partition, BROKER)

    def _followed(self, tp: TopicIdPartition) -> Partition | None:
        """The partition, if this node still follows the leader that it asked."""
        partition, sent = self._partitions.replica(tp), self._sent.get(tp)
        if partition is None or sent is None or not partition.has_tenure(Role.FOLLOWER, sent.leader_epoch):
            return None
        return partition

    async def _carry_out(self, partition: Partition, update: pb.ReplicaUpdate, chunks: Sequence[pa.Buffer]) -> None:
        """Raises WireErrors, ValueError for a cut of records that may be acknowledged, OSError, DocumentError."""
        if update.HasField("error"):
            raise from_proto(update.error)
        if update.diverges:
            await self._cut(partition, Common(update.common_epoch, update.common_end_offset))
            return
        if update.snapshot:
            await self._begin_anew(partition, decode_snapshot(update.snapshot))
            return
        for chunk in chunks:
            if self._followed(partition.tp) is not partition:
                return
            for batch in walk_batches(chunk):
                partition.append_as_follower(batch)
            self.bytes_in += len(chunk)
            await asyncio.sleep(0)
        if self._followed(partition.tp) is partition:
            partition.leader_told(update.high_watermark, update.last_stable_offset, update.log_start_offset)

    async def _cut(self, partition: Partition, common: Common) -> None:
        """Cuts the records that the leader does not have."""
        end_offset, leader_epoch = partition.ends.log_end_offset, partition.leader_epoch
        offset = cut_offset(partition.epochs, end_offset, common)
        if offset >= end_offset:
            raise CorruptMessageError(f"{partition.name}: the leader's log diverges, but there is nothing to cut at {offset}")
        self._check_removes(partition, f"is not cut at offset {offset}, where the leader's log differs")
        for _ in range(_FLUSHES):
            if partition.has_unsynced:
                await self._flusher.flush(partition, BROKER)
                partition.health.check_writable(partition.ends.log_start_offset)
        failed = await self._admin.run(self._replicas.cut({partition: offset}, leader_epoch))
        if partition in failed:
            raise failed[partition]
        cut_end = partition.ends.log_end_offset
        logger.info(
            "%s: cut %d records that the leader does not have, from offset %d on", partition.name, end_offset - cut_end, cut_end
        )

    def _check_removes(self, partition: Partition, text: str) -> None:
        """Raises ValueError, with `text`, if this copy may have been in sync when an older one was elected: no other copy may have
        its records, and its high watermark may miss the last second of acknowledged ones."""
        at = self._membership.image.partition(partition.tp)
        if at is not None and (self._membership.node_id, self._membership.directory_id) in at.entry.superseded:
            raise ValueError(
                f"{partition.name}: {text}: an older copy was elected, or etcd had gone back, and it may have what no other has "
                "('brokerd cluster reassign' takes it away, and gives it back)"
            )

    async def _begin_anew(self, partition: Partition, snapshot: Snapshot) -> None:
        """Drops this copy, which ends below the leader's log start, and starts over there."""
        if snapshot.seed != partition.crc_seed:
            raise CorruptMessageError(f"{partition.name}: the leader's snapshot is of another partition")
        epoch, end_offset = partition.leader_epoch, partition.ends.log_end_offset
        if snapshot.offset <= end_offset:
            raise CorruptMessageError(
                f"{partition.name}: the leader's log is said to begin at {snapshot.offset}, but this copy ends at {end_offset}"
            )
        if end_offset > partition.ends.log_start_offset:
            self._check_removes(partition, f"does not begin anew at offset {snapshot.offset}, where the leader's log begins")
        logger.info("%s: begins anew at offset %d, where the leader's log begins", partition.name, snapshot.offset)
        await to_its_end(self._replace(partition.tp, snapshot, epoch))

    async def _replace(self, tp: TopicIdPartition, snapshot: Snapshot, leader_epoch: int) -> None:
        try:
            await self._admin.run(self._replicas.begin_anew(tp, snapshot, leader_epoch))
        finally:
            await self._membership.look_again()  # the partition was missing meanwhile

    def _fail(self, partition: Partition, error: Exception) -> None:
        """Logs why a partition is not copied, and asks for it again after a pause."""
        if partition.is_stopped or partition.is_refused:
            self._unable.add(partition.tp)
        self._sent.pop(partition.tp, None)
        self._paused[partition.tp] = self._clock.monotonic_ms() + _RETRY_MS
        now_ms, problem = self._clock.monotonic_ms(), self._problems.get(partition.tp)
        if problem is None or problem.text != str(error):
            problem = self._problems[partition.tp] = _Problem(str(error), now_ms)
        is_passing = isinstance(error, WireError) and error.retriable and now_ms - problem.since_ms < _PASSES_WITHIN_MS
        if not (is_passing or problem.is_told):
            problem.is_told = True
            logger.error("%s is not copied: %s", partition.name, problem.text)
