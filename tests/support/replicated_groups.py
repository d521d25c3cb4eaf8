"""A group that commits offsets on a replicated cluster and reads them back. Checked: each answer is what the committed part of the
coordinator's log gave at some moment between request and answer, so an offset that was read or acknowledged never goes back.

All commits are of one partition's offset 0, which is always valid. The commit's number is in the metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from brokerd.ids import TopicIdPartition
from brokerd.wire.v1.coordinator_log_pb2 import CoordinatorRecord
from brokerd.wire.v1.offsets_pb2 import CommitGroupOffsetsRequest, FetchGroupOffsetsRequest, PartitionGroupOffset
from tests.support.simulated_transactions import Done, Request
from tests.support.transaction_actors import Actor

if TYPE_CHECKING:
    from tests.support.replicated_clients import Clients

GROUP = "readers"
NOTHING = 0
GroupRequest = CommitGroupOffsetsRequest | FetchGroupOffsetsRequest


class Read(NamedTuple):
    """A fetch's answer: the number of the newest commit."""

    number: int


class GroupClient(Actor):
    """Fetches committed offsets, one request at a time; with `commits`, it also commits."""

    def __init__(self, clients: Clients, tp: TopicIdPartition, *, commits: bool) -> None:
        super().__init__(clients)
        self._clients = clients
        self._tp = tp
        self._commits = commits
        self._number = NOTHING
        self._pause_ms = clients.rng.choice((200, 200, 2_000))

    def step(self) -> None:
        """Sends a request."""
        place = PartitionGroupOffset(**self._tp._asdict(), leader_epoch=-1)
        request: GroupRequest = FetchGroupOffsetsRequest(group_id=GROUP, partitions=[place])
        if self._commits and self._clients.rng.random() < 0.7:
            self._number += 1
            place.metadata = str(self._number)
            request = CommitGroupOffsetsRequest(group_id=GROUP, offsets=[place])
        self.ask(cast("Request", request))

    def on_answer(self, request: Request, answer: object) -> None:
        assert isinstance(answer, Done | Read), f"a group is answered with {answer!r}"
        if not self._clients.is_calm:
            self._clients.sim.after(self._clients.rng.randint(0, self._pause_ms), self.step)


class GroupPromises:
    """See the module."""

    def __init__(self) -> None:
        self._committed = [(0, NOTHING)]  # (since when in ms, commit number), in log order

    def recorded(self, record: CoordinatorRecord, now_ms: int) -> None:
        """A group's record is committed in the log."""
        for one in record.offsets_committed.offsets:
            self._committed.append((now_ms, int(one.metadata)))

    def told(self, request: GroupRequest, answer: object, asked_ms: int) -> None:
        """A coordinator answers a request sent at `asked_ms`."""
        if isinstance(answer, Read):
            since = max(place for place, (at_ms, _) in enumerate(self._committed) if at_ms <= asked_ms)
            possible = {number for _, number in self._committed[since:]}
            assert answer.number in possible, f"a group is told of commit {answer.number}, and {possible} have held meanwhile"
        elif isinstance(answer, Done) and isinstance(request, CommitGroupOffsetsRequest):
            (asked,) = request.offsets
            assert int(asked.metadata) in {number for _, number in self._committed}, f"commit {asked.metadata} is not committed"
