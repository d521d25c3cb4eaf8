"""The partitions of this node as the coordinator reaches them (brokerd/transaction/leaders.py): which of them hold data of open
members, and the markers that end it.

What a member has in a partition is known there, from its log. Here it is noted where to look, so that no commit asks all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping

from brokerd.clock import Clock
from brokerd.datadir.log_manager import LogManager
from brokerd.errors import InvalidRequestError, UnknownTopicIdError, UnknownTopicOrPartitionError, WireError
from brokerd.ids import TopicIdPartition
from brokerd.record.control import encode_control
from brokerd.server.replica_manager import Replica, ReplicaManager
from brokerd.server.transactions.durability import wait_durable
from brokerd.server.waiting.pauses import Pauses
from brokerd.transaction.leaders import Held, OpenData
from brokerd.wire.v1 import control_pb2

_MARKER_PIECES = 10  # a marker takes about so many times as long as what Pauses counts

# Markers in the log, by partition: the offset of each, and whose data it ends is no question any more.
Markers = MutableMapping[TopicIdPartition, tuple[Replica, int]]


class LocalLeaders:
    """See the module. Belongs to the event loop."""

    def __init__(self, logs: LogManager, replicas: ReplicaManager, clock: Clock) -> None:
        self._logs = logs
        self._replicas = replicas
        self._clock = clock
        self._partitions_of: dict[int, set[TopicIdPartition]] = {}  # by producer id
        for log in logs.partitions():
            for producer_id in log.core.open_producer_ids():
                self.appended(producer_id, log.tp)

    def appended(self, producer_id: int, tp: TopicIdPartition) -> None:
        """A member has written there."""
        self._partitions_of.setdefault(producer_id, set()).add(tp)

    @property
    def producer_ids(self) -> Collection[int]:
        """Members that hold open data somewhere, or did until its topic was deleted."""
        return self._partitions_of.keys()

    def open_data(self, producer_id: int) -> dict[Replica, OpenData]:
        """The data that one member holds, by partition."""
        held = {}
        for tp in list(self._partitions_of.get(producer_id, ())):
            replica = self._replica(tp)
            found = replica.core.open_data(producer_id) if replica is not None else None
            if replica is None or found is None:
                self._ended(producer_id, tp)
            else:
                held[replica] = OpenData(*found)
        return held

    def held(self, producer_ids: Iterable[int], partitions: Iterable[TopicIdPartition] = ()) -> Held:
        """The open data of these members in all partitions, and which of `partitions` are deleted. Raises InvalidRequestError if a
        topic never had such a partition.
        """
        data: dict[TopicIdPartition, dict[int, OpenData]] = {}
        for producer_id in producer_ids:
            for replica, found in self.open_data(producer_id).items():
                data.setdefault(replica.log.tp, {})[producer_id] = found
        return Held(data, [tp for tp in partitions if not self._exists(tp)])

    async def write_markers(
        self, records: Mapping[TopicIdPartition, control_pb2.ControlRecord], markers: Markers, *, is_held: bool
    ) -> None:
        """Writes a control batch to each partition that holds data of its members still, and notes it in `markers`. Returns once
        all in `markers` are durable, also those of earlier attempts. Partitions that are deleted meanwhile need none.

        Raises StorageError and others if one cannot be written or made durable: those that could be are noted.
        """
        failed: WireError | None = None
        pauses = Pauses()
        for tp, record in records.items():
            try:
                self._write(tp, record, markers, is_held=is_held)
            except WireError as error:
                failed = failed or error
            await pauses.after(_MARKER_PIECES)
        placed = list(markers.items())
        errors = await wait_durable(self._replicas, self._clock, [marker for _, marker in placed])
        for place, problem in errors.items():
            if isinstance(problem, UnknownTopicIdError):
                del markers[placed[place][0]]
            else:
                failed = failed or problem
        if failed is not None:
            raise failed

    def release(self, markers: Markers) -> None:
        """Lets held markers count, all in one step."""
        self._replicas.release_markers(list(markers.values()))

    def _write(self, tp: TopicIdPartition, record: control_pb2.ControlRecord, markers: Markers, *, is_held: bool) -> None:
        replica = self._replica(tp)
        ended = (*record.committed_producer_ids, *record.aborted_producer_ids)
        if replica is not None and any(replica.core.open_data(producer_id) is not None for producer_id in ended):
            record.coordinator_epoch = self._logs.leader_epoch
            batch = encode_control(record, tp, timestamp_ms=self._logs.time.stamp_wall_ms())
            markers[tp] = replica, self._replicas.append_marker(replica, batch, is_held=is_held).base_offset
        for producer_id in ended:
            self._ended(producer_id, tp)

    def _ended(self, producer_id: int, tp: TopicIdPartition) -> None:
        partitions = self._partitions_of.get(producer_id)
        if partitions is not None:
            partitions.discard(tp)
            if not partitions:
                del self._partitions_of[producer_id]

    def _replica(self, tp: TopicIdPartition) -> Replica | None:
        """None if its topic is deleted."""
        try:
            return self._replicas.replica(tp)
        except (UnknownTopicIdError, UnknownTopicOrPartitionError):
            return None

    def _exists(self, tp: TopicIdPartition) -> bool:
        try:
            self._replicas.replica(tp)
        except UnknownTopicIdError:
            return False
        except UnknownTopicOrPartitionError as error:
            raise InvalidRequestError(f"partitions: {error.message}") from None
        return True
