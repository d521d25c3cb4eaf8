"""A follower's report counts whenever it arrives: the follower does not repeat it while nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.cluster.image import Node, PartitionAt
from brokerd.cluster.keys import InSyncReplica, PartitionEntry, Registration
from brokerd.config.topic import TopicConfig
from brokerd.errors import ErrorCode, NotReadyError
from brokerd.internode.v1 import internode_pb2 as pb
from brokerd.replication.leader import in_sync_of
from brokerd.server.replication.leading import Leading
from brokerd.server.replication.serving import ReplicaStream
from brokerd.storage.refusals import Refusals
from brokerd.wire.records import split_records
from tests.support.build import raw_batch
from tests.support.clock import START_WALL_MS, ManualClock
from tests.support.partition_replica import Replica

NODES = {number: Node(number, 10 + number, Registration("h", 1, f"d{number}"), 20 + number) for number in (1, 2)}
ENTRY = PartitionEntry((1, 2), (InSyncReplica(1, "d1"), InSyncReplica(2, "d2")), 1, 11, 1)


class Leader:
    """Node 1, which leads a partition that node 2 follows."""

    def __init__(self) -> None:
        replica = Replica(0, TopicConfig())
        replica.start(is_alone=False)
        self.log, self.revision = replica.log, 1
        self.image = SimpleNamespace(nodes=NODES, partition=lambda _tp: self.at)
        membership: Any = SimpleNamespace(image=self.image, node_id=1)
        client: Any = SimpleNamespace(clock=ManualClock())
        self.leading = Leading(client, membership, self, 1_000, Refusals("", ManualClock()))  # type: ignore[arg-type]
        self._membership = membership
        self.lead(1)

    def stream(self, context: Any) -> ReplicaStream:
        broker: Any = SimpleNamespace(partitions=self, clock=ManualClock())
        return ReplicaStream(broker, self._membership, self.leading, context)

    def __iter__(self) -> Any:
        return iter([self.log])

    def replica(self, _tp: object) -> Any:
        return self.log

    def lead(self, epoch: int) -> None:
        """Leads in a new epoch that `leading` does not know yet."""
        self.at = PartitionAt(ENTRY._replace(leader_epoch=epoch), epoch)
        self.log.lead(epoch, in_sync_of(ENTRY))

    def append(self) -> int:
        """Appends durably; returns the log end."""
        self.log.append(raw_batch(b"row"), now_wall_ms=START_WALL_MS)
        self.log.flush()
        return self.log.ends.log_end_offset

    def report(self, end: int, epoch: int) -> bytes:
        request = pb.ReplicateRequest(node_id=2, node_epoch=12)
        place = {"topic_id": self.log.tp.topic_id, "partition": self.log.tp.partition}
        request.positions.add(
            **place, leader_epoch=epoch, log_end_offset=end, durable_end=end, log_start_offset=0, last_epoch=self.log.epochs.latest
        )
        return request.SerializeToString()


class Context:
    """A follower's stream: sends the result of each step, and records the errors in the responses."""

    def __init__(self, *steps: Callable[[], bytes]) -> None:
        self._steps = list(steps)
        self.errors: list[list[ErrorCode]] = []

    async def read(self) -> object:
        return self._steps.pop(0)() if self._steps else None

    async def write(self, data: bytes) -> None:
        response, _ = split_records(pb.ReplicateResponse, data)
        self.errors.append([ErrorCode(update.error.code) for update in response.updates if update.HasField("error")])


async def test_a_report_that_comes_before_the_leader_has_its_role_is_counted_afterwards() -> None:
    leader = Leader()
    end = leader.append()
    context = Context(lambda: leader.report(end, 2))
    stream = leader.stream(context)
    respond = stream._response

    async def leads_meanwhile() -> bytes:
        leader.lead(2)
        return await respond()

    stream._response = leads_meanwhile  # type: ignore[method-assign]
    await stream.run()
    assert leader.log.ends.high_watermark == end
    assert context.errors == [[]]


async def test_a_report_in_a_new_epoch_is_not_counted_in_the_one_before() -> None:
    leader = Leader()
    leader.leading.follow_image()
    end = leader.append()
    leader.lead(2)
    context = Context(lambda: leader.report(end, 2))
    await leader.stream(context).run()
    leader.leading.follow_image()
    assert leader.log.ends.high_watermark == end
    assert context.errors == [[]]


def test_a_report_counts_though_the_follower_has_heard_first_that_it_was_added() -> None:
    leader = Leader()
    end = leader.append()
    alone = ENTRY._replace(replicas=(1,), isr=ENTRY.isr[:1])
    leader.at = PartitionAt(alone, 1)
    leader.leading.follow_image()
    leader.stream(Context())._take(leader.report(end, 1))
    leader.at = PartitionAt(alone._replace(replicas=(1, 2)), 2)
    leader.leading.follow_image()
    led = leader.leading.led(leader.log)
    assert led is not None
    joins = led.proposal(NODES, 0, 1_000)
    assert joins is not None
    assert joins.joining == NODES[2]


def test_what_comes_late_on_an_older_stream_says_nothing() -> None:
    """The follower has begun a newer stream. Its late report would look like a loss of what it reported there."""
    leader = Leader()
    older, newer = leader.stream(Context()), leader.stream(Context())
    older._take(leader.report(0, 1))
    end = leader.append()
    newer._take(leader.report(end, 1))
    assert leader.log.ends.high_watermark == end
    with pytest.raises(NotReadyError, match="node 2 has begun another stream"):
        older._take(leader.report(0, 1))
    led = leader.leading.led(leader.log)
    assert led is not None
    assert led.proposal(NODES, 0, 1_000) is None, "it stays in sync"


@pytest.mark.parametrize(
    ("sizes_mb", "looked_at"),
    [
        ([("behind", 1), ("in sync", 0.01), ("behind", 1)], ["in sync", "behind"]),
        ([("in sync", 3), *[("behind", 1)] * 5], ["in sync", *["behind"] * 3]),
        ([("in sync", 1)] * 5 + [("behind", 1)] * 9, ["in sync"] * 5 + ["behind"] * 3),
        ([("in sync", 1)] * 9 + [("behind", 1)] * 9, ["in sync"] * 8 + ["behind"]),
        ([("behind", 1)] * 9, ["behind"] * 8),
    ],
    ids=[
        "CATCH_UP_BYTES",
        "or as much as those in sync",
        "within RESPONSE_BYTES",
        "but something each time",
        "all, if nobody waits",
    ],
)
async def test_catching_up_holds_up_no_producers(sizes_mb: list[tuple[str, float]], looked_at: list[str]) -> None:
    """In-sync partitions are served first, whichever became due first."""
    stream: Any = Leader().stream(Context())
    stream._due = stream._followed = dict(enumerate(sizes_mb))
    stream._is_in_sync = lambda number: sizes_mb[number][0] == "in sync"
    found = list[str]()

    async def look(number: int, response: pb.ReplicateResponse, _records: object) -> int:
        response.updates.add()
        found.append(sizes_mb[number][0])
        return int(sizes_mb[number][1] * 1_048_576)

    stream._look = look
    await stream._response()
    assert found == looked_at
