"""The streams by which followers copy from this node (Replicate in proto/brokerd/internode).

- A stream belongs to one follower, and keeps its positions. A request updates some of them. It is answered once a partition has
  batches to send, TELL_S after only an end has moved, or after WAIT_S with nothing. If other partitions always have batches, a
  moved end is sent after WAIT_S at the latest: a copy that does not know the log start cannot join.
- replication/__init__.py says what a position counts for, and how followers cut, start over and catch up.
- A partition that cannot be served gets an error, and its position is forgotten.
- Batches are sent as soon as they are written, so the disks of follower and leader work at the same time.
- A response has at most RESPONSE_BYTES of batches, and at most PARTITION_BYTES, but at least one batch, per partition. Snapshots
  are not divided. After a snapshot or a cut the follower has many files to sync before it reports, so each counts as at least
  CATCH_UP_BYTES.
- Producers wait until an in-sync follower has each response on disk. So its in-sync partitions go first, and all others together
  get at most as much, but at least CATCH_UP_BYTES: catching up about doubles such a producer's wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

from brokerd.cluster.image import Node
from brokerd.errors import (
    CorruptMessageError,
    FencedLeaderEpochError,
    NotLeaderError,
    NotReadyError,
    UnknownLeaderEpochError,
    WireError,
)
from brokerd.ids import TopicIdPartition
from brokerd.internode.v1 import internode_pb2 as pb
from brokerd.partition.derived_files import encode_snapshot
from brokerd.partition.log_ends import LogEnd
from brokerd.partition.partition import Partition
from brokerd.partition.reader import FetchDataInfo
from brokerd.purgatory import Completion, DelayedOperation
from brokerd.replication.follower import Common, Position, divergence, is_of_other_history
from brokerd.server.broker import BrokerParts
from brokerd.server.cluster.membership import Membership
from brokerd.server.failures import internal, malformed
from brokerd.server.replication.leading import Leading
from brokerd.server.requests import topic_id_partition
from brokerd.server.streams import Context
from brokerd.sharing import BROKER
from brokerd.storage.files import Buffer, WouldBlock
from brokerd.wire.errors import to_proto
from brokerd.wire.records import join_records

WAIT_S = 0.5
TELL_S = 0.02  # ends travel with the next batches if those come within this time
RESPONSE_BYTES = 8_388_608
PARTITION_BYTES = 1_048_576
CATCH_UP_BYTES = 1_048_576
_NEVER_MS = 10**9
_WATCHED = (LogEnd.LOG_END, LogEnd.HIGH_WATERMARK, LogEnd.LAST_STABLE_OFFSET)


class _Watch(DelayedOperation):
    """Tells a stream when an end of one partition, or its role, may have changed: True if there may be batches to send, False for
    ends only. Never satisfied."""

    __slots__ = ("_tell",)

    def __init__(self, partition: Partition, tell: Callable[[bool], None]) -> None:
        super().__init__(_NEVER_MS, [partition.waiters[end] for end in _WATCHED])
        self._tell = tell

    def is_satisfied(self, place: int) -> bool:
        self._tell(_WATCHED[place] is LogEnd.LOG_END)
        return False

    def on_complete(self, completion: Completion) -> None:  # noqa: ARG002 - all cases are alike
        self._tell(True)


class _Followed:
    """One partition of a stream."""

    __slots__ = ("is_counted", "partition", "position", "told", "watch")

    def __init__(self, position: Position) -> None:
        self.position = position
        self.is_counted = False  # the position was reported while this node led in its epoch
        self.partition: Partition | None = None  # the one watched
        self.watch: _Watch | None = None
        self.told: tuple[int, int, int] | None = None  # the ends that the follower knows

    @property
    def leads(self) -> bool:
        """True if this node still leads in the follower's epoch; only then are its ends the leader's."""
        return self.partition is not None and self.partition.leads_in(self.position.leader_epoch)


class ReplicaStream:
    """One follower's stream; see the module docstring."""

    def __init__(self, broker: BrokerParts, membership: Membership, leading: Leading, context: Context) -> None:
        self._broker = broker
        self._membership = membership
        self._leading = leading
        self._context = context
        self._node_id, self._node_epoch = -1, -1
        self._is_begun = False
        self._followed: dict[TopicIdPartition, _Followed] = {}
        self._due: dict[TopicIdPartition, None] = {}  # partitions to look at, oldest first
        self._moved: set[TopicIdPartition] = set()  # partitions of which only ends may have moved
        self._moved_ms = 0  # monotonic; when the first of them moved
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Serves until the follower closes its side. Raises MalformedError, NotReadyError to end the stream."""
        try:
            while isinstance(data := cast("object", await self._context.read()), bytes):
                self._take(data)
                await self._context.write(await self._response())
        finally:
            for tp in list(self._followed):
                self._drop(tp)
            if self._leading.streams.get(self._node_id) is self:
                del self._leading.streams[self._node_id]

    # Requests

    def _take(self, data: bytes) -> None:
        request = pb.ReplicateRequest.FromString(data)
        epoch, self._node_id, self._node_epoch = self._node_epoch, request.node_id, request.node_epoch
        for dropped in request.dropped:
            self._drop(topic_id_partition("dropped", dropped.topic_id, dropped.partition))
        node = self._node()
        self._check_newest(node)
        self._leading.heard(node)
        if self._node_epoch != epoch:
            for tp, told in self._followed.items():  # earlier positions also count for the new registration
                self._report(node, tp, told)
        for given in request.positions:
            tp = topic_id_partition("positions", given.topic_id, given.partition)
            position = Position(
                given.leader_epoch,
                given.log_end_offset,
                given.durable_end,
                given.log_start_offset,
                given.last_epoch,
                given.last_epoch_id,
            )
            if not 0 <= position.log_start_offset <= position.durable_end <= position.log_end_offset:
                raise malformed("positions", f"has offsets that are not in order: {position}")
            followed = self._followed.get(tp)
            before = followed.position if followed is not None else None
            if followed is None:
                followed = self._followed[tp] = _Followed(position)
            if before is None or before == position or before.leader_epoch != position.leader_epoch:
                self._tell_again(tp, followed)  # it has begun to follow, or failed to apply the last update
            followed.position, followed.is_counted = position, False
            self._report(node, tp, followed)
            self._tell(tp, True)

    def _check_newest(self, node: Node) -> None:
        """Raises NotReadyError if the follower has begun another stream since: this request is late, and its positions are old."""
        streams = self._leading.streams
        if not self._is_begun:
            self._is_begun, streams[node.id] = True, self
        if streams.get(node.id) is not self:
            raise NotReadyError(f"node {node.id} has begun another stream")

    def _node(self) -> Node:
        """The follower's node. Raises NotReadyError if this node's image does not have its registration."""
        node = self._membership.image.nodes.get(self._node_id)
        if node is None or node.epoch != self._node_epoch:
            raise NotReadyError(f"node {self._node_id} is not registered with epoch {self._node_epoch}, as this node knows")
        return node

    def _report(self, node: Node, tp: TopicIdPartition, followed: _Followed) -> None:
        partition, position = self._broker.partitions.replica(tp), followed.position
        if partition is None or not partition.leads_in(position.leader_epoch):
            return
        followed.is_counted, ends = True, partition.ends
        if position.log_end_offset >= ends.log_start_offset and _divergence(partition, position) is None:
            self._leading.reported(partition, node, position.durable_end, position.log_start_offset)

    def _drop(self, tp: TopicIdPartition) -> None:
        followed = self._followed.pop(tp, None)
        self._due.pop(tp, None)
        self._moved.discard(tp)
        if followed is None:
            return
        if followed.watch is not None:
            followed.watch.cancel()
        if self._leading.streams.get(self._node_id) is self:
            self._leading.withdrawn(tp, self._node_id)

    def _tell(self, tp: TopicIdPartition, is_due: bool) -> None:
        if tp not in self._followed:
            return
        if is_due:
            self._due[tp] = None
        else:
            if not self._moved:
                self._moved_ms = self._broker.clock.monotonic_ms()
            self._moved.add(tp)
        self._woken.set()

    def _tell_again(self, tp: TopicIdPartition, followed: _Followed) -> None:
        """Has the ends sent: the follower does not have them, or ignores those sent with a cut or a snapshot."""
        followed.told = None
        self._tell(tp, False)

    # Responses

    async def _response(self) -> bytes:
        response, records = pb.ReplicateResponse(), list[Buffer]()
        until = asyncio.get_running_loop().time() + WAIT_S
        while not response.updates:
            if not self._due and not await self._wait(until):
                self._tell_ends(response)
                break
            # A partition that gets more batches meanwhile waits for the next request, which has its new position.
            due: dict[bool, list[TopicIdPartition]] = {True: [], False: []}
            for tp in self._due:
                due[self._is_in_sync(tp)].append(tp)
            left = await self._look_at(due[True], RESPONSE_BYTES, response, records)
            if due[False] and any(map(self._is_in_sync, self._followed)):
                left = max(min(left, RESPONSE_BYTES - left), CATCH_UP_BYTES)
            await self._look_at(due[False], left, response, records)
            if self._moved and self._broker.clock.monotonic_ms() >= self._moved_ms + WAIT_S * 1_000:
                self._tell_ends(response)
        return join_records(response, [[chunk] for chunk in records])

    def _tell_ends(self, response: pb.ReplicateResponse) -> None:
        """Adds the ends that the follower does not know, for partitions not in the response yet."""
        added = {TopicIdPartition(update.topic_id, update.partition) for update in response.updates}
        for tp in self._moved - added:
            followed = self._followed[tp]
            partition = followed.partition
            # A change of role makes the partition due, and the next look reports it.
            if partition is not None and followed.leads and followed.told != _ends(partition):
                self._add(response, tp, followed)
        self._moved &= added
        self._moved_ms = self._broker.clock.monotonic_ms()

    async def _wait(self, until: float) -> bool:
        """True once a partition is due; False at the deadline, or TELL_S after an end has moved."""
        has_moved = False
        while not self._due:
            if self._moved and not has_moved:
                has_moved, until = True, min(until, asyncio.get_running_loop().time() + TELL_S)
            self._woken.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self._woken.wait()
            except TimeoutError:
                return False
        return True

    async def _look_at(
        self, tps: Iterable[TopicIdPartition], left: int, response: pb.ReplicateResponse, records: list[Buffer]
    ) -> int:
        """Looks at partitions while bytes are left. Returns the bytes left."""
        for tp in tps:
            if left > 0:
                left -= await self._look(tp, response, records)
        return left

    async def _look(self, tp: TopicIdPartition, response: pb.ReplicateResponse, records: list[Buffer]) -> int:
        """Adds what is new in a partition to the response. Returns the bytes that it counts for."""
        followed, before = self._followed[tp], len(response.updates)
        try:
            partition = self._watched(tp, followed)
            if not followed.is_counted:  # this node began to lead after the position came, which is not repeated
                self._report(self._node(), tp, followed)
            del self._due[tp]
            chunks = await self._news(partition, followed, response)
            if chunks:
                self._add(response, tp, followed).record_chunks = len(chunks)
        except Exception as error:
            problem = error if isinstance(error, WireError) else internal(f"copies of {tp}", error)
            self._drop(tp)
            response.updates.add(topic_id=tp.topic_id, partition=tp.partition, error=to_proto(problem))
            return 0
        records.extend(chunks)
        size_bytes = sum(map(len, chunks))
        self._leading.bytes_out += size_bytes
        work = [len(update.snapshot) for update in response.updates[before:] if update.snapshot or update.diverges]
        return max(CATCH_UP_BYTES, *work) if work else size_bytes

    def _watched(self, tp: TopicIdPartition, followed: _Followed) -> Partition:
        """The partition, with a watch for this stream. Raises NotLeaderError, FencedLeaderEpochError or UnknownLeaderEpochError if
        this node does not lead it in the follower's epoch."""
        partition, epoch = self._broker.partitions.replica(tp), followed.position.leader_epoch
        if partition is None or not partition.is_leader:
            raise NotLeaderError(f"partition {tp} is not led by this node")
        if epoch != partition.leader_epoch:
            kind = FencedLeaderEpochError if epoch < partition.leader_epoch else UnknownLeaderEpochError
            raise kind(f"partition {tp} is led in epoch {partition.leader_epoch}, not {epoch}")
        if followed.partition is not partition or followed.watch is None or followed.watch.is_completed:
            if followed.watch is not None:
                followed.watch.cancel()
            followed.partition, followed.watch = partition, _Watch(partition, partial(self._tell, tp))
            self._leading.watchers.try_complete_else_watch(followed.watch)
        return partition

    async def _news(self, partition: Partition, followed: _Followed, response: pb.ReplicateResponse) -> list[Buffer]:
        """The batches after the follower's position; else adds a divergence or a snapshot to the response. Raises WireErrors."""
        position, log_start = followed.position, partition.ends.log_start_offset
        if position.log_end_offset >= log_start and self._diverges(partition, followed, response):
            return []
        found = await self._read(partition, max(position.log_end_offset, log_start))
        # The follower ends below the log start. If it continues there instead of starting over, its log must agree with the
        # leader's: producer state is derived from it.
        if found.first_offset <= position.log_end_offset < log_start and self._diverges(partition, followed, response):
            return []
        if found.first_offset == position.log_end_offset:
            return found.chunks
        if found.first_offset < position.log_end_offset:
            raise CorruptMessageError(f"{partition.name}: a follower ends at {position.log_end_offset}, inside of a batch")
        if position.log_end_offset > max(position.log_start_offset, log_start):
            # Starting over would drop its records, and other copies of them may be removed once it is in sync.
            raise CorruptMessageError(
                f"{partition.name}: offsets {position.log_end_offset} to {found.first_offset - 1} were taken out of the leader's "
                "log, and no copy gets past them: let another replica in sync lead (`brokerd cluster move-leader`); if none has "
                f"them, `brokerd topics trim` can delete all that is below offset {found.first_offset}"
            )
        snapshot = partition.snapshot_at(found.first_offset)
        body = await self._broker.readers.run(BROKER, partial(encode_snapshot, snapshot))
        self._add(response, partition.tp, followed).snapshot = body
        self._tell_again(partition.tp, followed)
        return []

    def _diverges(self, partition: Partition, followed: _Followed, response: pb.ReplicateResponse) -> bool:
        """Tells the follower where the logs diverge, if they do. Raises NotReadyError if a new leader epoch is due first."""
        common = _divergence(partition, followed.position)
        if common is None:
            return False
        led = self._leading.led(partition)
        is_other = is_of_other_history(partition.epochs, partition.leader_epoch, followed.position)
        if led is not None and is_other and not led.protects(self._node()):
            self._leading.disputed(partition)
            raise NotReadyError(f"{partition.name}: a copy is of another history, and is not cut: a new leader epoch begins")
        update = self._add(response, partition.tp, followed)
        update.diverges, update.common_epoch, update.common_end_offset = True, common.epoch, common.end_offset
        self._tell_again(partition.tp, followed)
        return True

    def _is_in_sync(self, tp: TopicIdPartition) -> bool:
        """True if the follower is in sync, or if this is not known."""
        partition = self._broker.partitions.replica(tp)
        led = self._leading.led(partition) if partition is not None else None
        return led is None or led.is_in_sync(self._node_id)

    async def _read(self, partition: Partition, offset: int) -> FetchDataInfo:
        if not self._is_in_sync(partition.tp):
            checked = partial(partition.read_checked, offset, below=LogEnd.LOG_END, max_bytes=PARTITION_BYTES)
            return await self._broker.readers.run(BROKER, checked)
        read = partial(partition.read, offset, below=LogEnd.LOG_END, max_bytes=PARTITION_BYTES)
        try:
            return read(cached_only=True)
        except WouldBlock:
            return await self._broker.readers.run(BROKER, partial(read, cached_only=False))

    def _add(self, response: pb.ReplicateResponse, tp: TopicIdPartition, followed: _Followed) -> pb.ReplicaUpdate:
        """Adds an update with the leader's ends, which the follower then knows. Raises NotLeaderError."""
        assert followed.partition is not None, "it is watched"
        if not followed.leads:
            raise NotLeaderError(f"partition {tp} has another leader meanwhile")
        followed.told = high_watermark, last_stable_offset, log_start_offset = _ends(followed.partition)
        return response.updates.add(
            topic_id=tp.topic_id,
            partition=tp.partition,
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
            log_start_offset=log_start_offset,
        )


def _divergence(partition: Partition, position: Position) -> Common | None:
    ends = partition.ends
    return divergence(partition.epochs, ends.log_start_offset, ends.log_end_offset, position)


def _ends(partition: Partition) -> tuple[int, int, int]:
    ends = partition.ends
    return ends.high_watermark, ends.last_stable_offset, ends.log_start_offset
