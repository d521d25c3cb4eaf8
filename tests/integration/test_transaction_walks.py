"""Goal: the test doubles of transactions respond as the real daemon does. Method: random conversations of members, batches and
decisions, run against both; every response is compared, and in the end what readers see.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from brokerd.client.blocking import BlockingClient
from brokerd.client.leases import ClientCoordinator
from brokerd.client.produce_transport import GrpcProduceTransport
from brokerd.clock import SystemClock
from brokerd.config.client import ProducerConfig
from brokerd.errors import WireError
from brokerd.ids import ProducerIdAndEpoch
from brokerd.producer.core.membership import MemberReport, Membership, Totals, TransactionEnd
from brokerd.producer.transaction import Coordinator
from tests.support.broker_double import CoordinatorDouble, double_of
from tests.support.daemon import running_daemon
from tests.support.files import MemoryFiles
from tests.support.produce_session import Session, TransportFactory, in_session
from tests.support.reading import committed_rows
from tests.support.scale import TEST_SCALE

PARTITIONS = 2
WALKS = 8 * TEST_SCALE
STEPS = 50
END_TIMEOUT_MS = 10_000
VERSIONS = 4


class Broker(NamedTuple):
    """The daemon or the double. `committed_rows`: how many records read_committed readers see."""

    factory: TransportFactory
    coordinator: Coordinator
    committed_rows: Callable[[], int]


@contextmanager
def double() -> Iterator[Broker]:
    broker = double_of(PARTITIONS)
    yield Broker(lambda: broker.transport(ProducerConfig()), CoordinatorDouble(broker), lambda: len(broker.committed_values("t")))


@contextmanager
def daemon(directory: Path) -> Iterator[Broker]:
    with running_daemon(directory, files=MemoryFiles()) as running:
        config = ProducerConfig(bootstrap_servers=running.address)
        with BlockingClient(config) as client:
            client.create_topic("t", PARTITIONS)
            yield Broker(
                lambda: GrpcProduceTransport(config, SystemClock()),
                ClientCoordinator(config),
                lambda: len(committed_rows(running.address, "t")),
            )


@dataclass
class Member:
    """A member of the conversation, as its program knows it."""

    membership: Membership
    identity: ProducerIdAndEpoch | None = None
    sent: dict[int, int] = field(default_factory=dict)  # records by partition


class Walk:
    """One conversation with one broker. It depends on the seed and on the responses."""

    def __init__(self, seed: int, broker: Broker) -> None:
        self.rng = random.Random(seed)
        self.coordinator = broker.coordinator
        self.members: list[Member] = []
        self.heard: list[tuple[object, ...]] = []

    async def run(self, session: Session, plain: ProducerIdAndEpoch) -> None:
        """Runs the conversation."""
        self.session, self.plain, self.plain_sent = session, plain, 0
        kinds = {self.init: 20, self.repeat: 5, self.send: 40, self.send_wrongly: 8, self.beat: 8, self.end: 20}
        for _ in range(STEPS):
            (kind,) = self.rng.choices(list(kinds), list(kinds.values()))
            try:
                self.heard.append((kind.__name__, *await kind()))
            except WireError as error:
                self.heard.append((kind.__name__, type(error).__name__, error.retriable))
        self.heard.append(("last", await asyncio.to_thread(self.coordinator.last_version, "id")))
        everybody = [MemberReport(one.identity.producer_id, 0, 0) for one in self.members if one.identity is not None]
        for version in range(VERSIONS):  # leaves nothing open that would hold back readers
            for execution in "ab":
                try:
                    await self.decide(TransactionEnd("id", version, execution, "r", False, everybody))
                except WireError as error:
                    self.heard.append(("abort", type(error).__name__))

    async def init(self) -> tuple[object, ...]:
        number = len(self.members)
        version, execution, run = self.rng.randrange(VERSIONS), self.rng.choice("ab"), self.rng.choice("rs")
        member = Member(Membership("id", version, execution, run, "walk", number.to_bytes(16), 600_000))
        self.members.append(member)
        member.identity = await self.session.transport.init_member(member.membership)
        return ("granted", member.identity.epoch)

    async def repeat(self) -> tuple[object, ...]:
        member = self.member()
        if member is None:
            return ("nobody",)
        identity = await self.session.transport.init_member(member.membership)
        return ("granted again", identity == member.identity)

    def member(self) -> Member | None:
        """Usually one of the last members."""
        granted = [member for member in self.members if member.identity is not None]
        return self.rng.choice(granted[-4:] if self.rng.random() < 0.8 else granted) if granted else None

    async def send(self) -> tuple[object, ...]:
        member = self.member()
        partition, count = self.rng.randrange(PARTITIONS), self.rng.randint(1, 3)
        if member is None or member.identity is None:
            return ("nobody",)
        sequence = member.sent.get(partition, 0)
        result = await self.session.send(
            member.identity, sequence, count, partition=partition, membership=member.membership, is_transactional=True
        )
        if result.error is not None:
            raise result.error
        member.sent[partition] = sequence + count
        return ("written",)

    async def send_wrongly(self) -> tuple[object, ...]:
        """A member's batch without its membership or with another's, or a batch of a plain producer with a membership."""
        member, other = self.member(), self.member()
        if member is None or other is None or member.identity is None:
            return ("nobody",)
        kind = self.rng.choice(("silent", "another", "plain"))
        await self.session.transport.heartbeat(member.membership)  # opens the member
        if kind == "plain":
            result = await self.session.send(self.plain, self.plain_sent, 1, membership=member.membership, is_transactional=True)
        else:
            membership = None if kind == "silent" else other.membership._replace(member_id=b"\xff" * 16)
            sequence = member.sent.get(0, 0)
            result = await self.session.send(
                member.identity, sequence, 1, membership=membership, is_transactional=kind == "another"
            )
        assert result.error is not None, f"{kind} got through"
        return (kind, type(result.error).__name__, result.error.fate)

    async def beat(self) -> tuple[object, ...]:
        member = self.member()
        if member is None:
            return ("nobody",)
        await self.session.transport.heartbeat(member.membership)
        return ("alive",)

    async def end(self) -> tuple[object, ...]:
        """A valid or invalid decision about some members of one execution."""
        member = self.member()
        if member is None:
            return ("nobody",)
        version, execution, run = member.membership[1:4]
        own = [one for one in self.members if one.identity is not None and one.membership[1:3] == (version, execution)]
        chosen = own if self.rng.random() < 0.7 else self.rng.sample(own, self.rng.randint(0, len(own)))
        wrong = self.rng.random() < 0.1
        listed = [
            MemberReport(one.identity.producer_id, 0, sum(one.sent.values()) + wrong) for one in chosen if one.identity is not None
        ]
        totals = Totals(rows=self.rng.choice((0, 1, 1, 2)))
        is_commit = self.rng.random() < 0.6
        end = TransactionEnd("id", version, execution, run, is_commit, listed, (), totals, any_skipped=self.rng.random() < 0.05)
        return await self.decide(end)

    async def decide(self, end: TransactionEnd) -> tuple[object, ...]:
        """Sends the decision to the broker."""
        await asyncio.to_thread(self.coordinator.end, end, timeout_ms=END_TIMEOUT_MS)
        return ("committed" if end.is_commit else "aborted",)


def conversation(seed: int, broker: Broker) -> list[tuple[object, ...]]:
    """All responses of a broker in a conversation."""
    walk = Walk(seed, broker)
    work: Callable[[Session, ProducerIdAndEpoch], Awaitable[None]] = walk.run
    in_session(broker.factory, work)
    return [*walk.heard, ("readers see", broker.committed_rows())]


def test_conversations_drawn_by_lot_are_answered_alike(tmp_path: Path) -> None:
    heard: set[object] = set()
    for seed in range(WALKS):
        with double() as one, daemon(tmp_path / str(seed)) as other:
            expected = conversation(seed, other)
            assert conversation(seed, one) == expected, seed
        heard |= {word[1] for word in expected}
    assert {
        "granted",
        "granted again",
        "written",
        "alive",
        "committed",
        "aborted",
        "silent",
        "another",
        "plain",
        "ProducerFencedError",
        "AlreadyCommittedError",
        "TxnConflictError",
        "ReplayMismatchError",
        "TxnAbortedError",
        "InvalidTxnStateError",
    } <= heard, "not everything was said"
