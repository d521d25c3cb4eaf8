"""Goal: a program that reads, works and writes does so exactly once, whichever process dies or sleeps. Method: real consumers and
producers on a real broker; two copies of a program (copy_worker.py) that are killed and paused at random, and so is the broker.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from brokerd import Consumer, Producer, TopicPartition
from brokerd.arguments import OffsetAndMetadata
from brokerd.client.blocking import BlockingClient
from brokerd.clock import SystemClock
from brokerd.config.client import ClientConfig
from brokerd.consumer.committing import RENEW_MS
from brokerd.errors import ConsumerStateError, OffsetOutOfRangeError, ProducerFencedError, TransactionStateError, UnknownGroupError
from brokerd.testing import Broker
from tests.integration import copy_worker
from tests.support.child import child
from tests.support.clock import ManualClock
from tests.support.daemon import running_daemon
from tests.support.scale import TEST_SCALE
from tests.support.wait import DEADLINE_S, wait_until

PARTITIONS = 2
TPS = [TopicPartition("in", number) for number in range(PARTITIONS)]
TROUBLES = 8 * min(20, TEST_SCALE)
RECORDS = 60 * TROUBLES
QUIET_MS = 200


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        broker.create_topic("in", PARTITIONS)
        broker.create_topic("out", PARTITIONS)
        yield broker


class Program:
    """One copy of a program, driven step by step."""

    def __init__(self, stack: ExitStack, broker: Broker, transactional_id: str, **settings: Any) -> None:
        common = {"bootstrap.servers": broker.bootstrap_servers, **copy_worker.QUICK}
        given = {"group.id": "copy", "enable.auto.commit": False, "auto.offset.reset": "earliest", **settings}
        self.consumer = stack.enter_context(Consumer({**common, **given}))
        self.producer = stack.enter_context(Producer({**common, "transactional.id": transactional_id, "linger.ms": 0}))
        self.consumer.assign(TPS)

    def read(self, timeout_ms: int = int(DEADLINE_S * 1000)) -> list[bytes | None]:
        self.values = [record.value for record in self.consumer.poll(timeout_ms)]
        return self.values

    def write(self) -> None:
        """Writes the records last read, in one transaction."""
        with self.producer.transaction() as transaction:
            self.offsets = {tp: self.consumer.position(tp) for tp in TPS}
            transaction.send_offsets(self.offsets, self.consumer)
            for value in self.values:
                self.producer.send("out", value)


def put(broker: Broker, count: int, begin: int = 0) -> list[bytes]:
    values = [b"%d" % number for number in range(begin, begin + count)]
    with Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
        for number, value in enumerate(values):
            producer.send("in", value, partition=number % PARTITIONS)
    return values


def out(broker: Broker) -> list[bytes]:
    """All records that read_committed readers see."""
    tps = [TopicPartition("out", number) for number in range(PARTITIONS)]
    values: list[bytes] = []
    with Consumer({"bootstrap.servers": broker.bootstrap_servers, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign(tps)
        ends = consumer.end_offsets(tps)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            values += [record.value or b"" for record in consumer.poll(QUIET_MS)]
    return values


def committed(broker: Broker) -> dict[TopicPartition, int]:
    with Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "copy", **copy_worker.QUICK}) as consumer:
        return {tp: one.offset if one is not None else -1 for tp, one in consumer.committed(TPS).items()}


@pytest.mark.parametrize("ids", [("a", "b"), ("a", "a")])
def test_a_program_that_was_overtaken_is_refused_and_goes_on_behind_the_other(broker: Broker, ids: tuple[str, str]) -> None:
    values = put(broker, 20)
    with ExitStack() as stack:
        zombie, heir = (Program(stack, broker, name) for name in ids)
        zombie.read()
        assert len(heir.read()) == 20
        heir.write()
        with pytest.raises(ProducerFencedError):
            zombie.write()
        assert zombie.read(QUIET_MS) == [], "it goes on from the committed offsets"
        more = put(broker, 10, begin=20)
        found: list[bytes | None] = []
        while len(found) < 10:
            found += zombie.read()
        zombie.values, heir.values = found, []
        zombie.write()
        with pytest.raises(ProducerFencedError):
            heir.write()
    assert sorted(out(broker)) == sorted(values + more)
    assert set(committed(broker).values()) == {15}


def test_a_program_whose_group_is_gone_is_told_so_and_writes_nothing_again(broker: Broker) -> None:
    """Its loop takes ProducerFencedError for another copy's work, and continues."""
    values = put(broker, 10)
    with ExitStack() as stack:
        program = Program(stack, broker, "a")
        program.read()
        program.write()
        with BlockingClient(ClientConfig(bootstrap_servers=broker.bootstrap_servers)) as client:
            client.delete_group("copy")  # as expiry does
        put(broker, 1, begin=10)
        assert program.read() == [b"10"]
        with pytest.raises(UnknownGroupError, match=r"no longer has an offset of in-., but .* it expired"):
            program.write()
        with pytest.raises(UnknownGroupError, match="had the offset 5 and has none now"):
            program.read()
        for tp in TPS:
            program.consumer.seek(tp, 5)
        assert program.read() == [b"10"]
        program.write()
    assert sorted(out(broker)) == sorted([*values, b"10"])


def test_a_program_that_has_nothing_to_do_keeps_its_group(tmp_path: Path) -> None:
    """Time advances only after the program's requests, in total by more than a group is retained."""
    clock, own = ManualClock(wall_ms=SystemClock().wall_ms()), ManualClock()
    with running_daemon(tmp_path / "data", offsets_retention_minutes=4, clock=clock) as daemon, ExitStack() as stack:
        client = stack.enter_context(BlockingClient(ClientConfig(bootstrap_servers=daemon.address)))
        client.create_topic("in", PARTITIONS)
        given = {"bootstrap.servers": daemon.address, "group.id": "g", "enable.auto.commit": False}
        program = stack.enter_context(Consumer(given, clock=own))
        program.assign(TPS)
        program.commit(dict.fromkeys(TPS, 0))
        for _ in range(4):
            (before,) = client.list_groups()
            clock.advance(2 * 60_000)
            own.advance(RENEW_MS)

            def is_renewed(before_ms: int = before.commit_timestamp) -> bool:
                program.poll(0)  # again: it renews nothing before it has the response to the last renewal
                (one,) = client.list_groups()
                return one.commit_timestamp > before_ms

            wait_until(is_renewed, what="the group is renewed")


def test_a_copy_that_slept_in_the_middle_of_its_block_is_refused(broker: Broker) -> None:
    values = put(broker, 6)
    with ExitStack() as stack:
        first, second = Program(stack, broker, "a"), Program(stack, broker, "b")
        first.read()

        def sleep_in_the_block() -> None:
            with first.producer.transaction() as transaction:
                transaction.send_offsets({tp: first.consumer.position(tp) for tp in TPS}, first.consumer)
                for value in first.values:
                    first.producer.send("out", value)
                second.read()
                second.write()

        with pytest.raises(ProducerFencedError, match="another program has committed since"):
            sleep_in_the_block()
    assert sorted(out(broker)) == values


def test_a_block_that_fails_gives_its_records_again(broker: Broker) -> None:
    values = put(broker, 10)
    with ExitStack() as stack:
        program = Program(stack, broker, "a")
        first = program.read()

        def fail() -> None:
            with program.producer.transaction() as transaction:
                transaction.send_offsets({tp: program.consumer.position(tp) for tp in TPS}, program.consumer)
                program.producer.send("out", first[0])
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert set(committed(broker).values()) == {-1}
        again: list[bytes | None] = []
        while len(again) < 10:
            again += program.read()
        program.values = again
        program.write()
        program.values = []
        program.write()  # writes nothing; its position is the expected one
        assert {tp: program.offsets[tp] for tp in TPS} == committed(broker)
    assert sorted(out(broker)) == values


def test_a_group_without_a_consumer_says_what_it_expects(broker: Broker) -> None:
    put(broker, 4)
    with ExitStack() as stack:
        producer = Program(stack, broker, "a").producer
        with producer.transaction() as transaction:
            with pytest.raises(ValueError, match="`expected`"):
                transaction.send_offsets({TPS[0]: 2}, "copy")
            with pytest.raises(ValueError, match="expected lacks"):
                transaction.send_offsets({TPS[0]: 2}, "copy", expected={})
            transaction.send_offsets({TPS[0]: OffsetAndMetadata(2, "two")}, "copy", expected={TPS[0]: None})
            with pytest.raises(TransactionStateError, match="a transaction has one group"):
                transaction.send_offsets({TPS[0]: 2}, "other", expected={TPS[0]: None})
        with pytest.raises(TransactionStateError, match="inside the block"):
            transaction.send_offsets({TPS[0]: 2}, "copy", expected={TPS[0]: None})
        with pytest.raises(ProducerFencedError), producer.transaction() as transaction:
            transaction.send_offsets({TPS[0]: 1}, "copy", expected={TPS[0]: None})
        with pytest.raises(OffsetOutOfRangeError), producer.transaction() as transaction:
            transaction.send_offsets({TPS[0]: 99}, "copy", expected={TPS[0]: 2})
        with producer.transaction() as transaction:
            transaction.send_offsets({TPS[0]: 1}, "copy", expected={TPS[0]: 2})
    assert committed(broker) == {TPS[0]: 1, TPS[1]: -1}


def test_a_consumer_that_sought_commits_where_it_has_come_to(broker: Broker) -> None:
    put(broker, 10)
    with ExitStack() as stack:
        program = Program(stack, broker, "a")
        program.consumer.seek(TPS[0], 4)
        program.consumer.seek_to_end([TPS[1]])
        assert program.read() == [b"8"]
        program.write()
        program.consumer.commit({TPS[0]: OffsetAndMetadata(2)})
        program.consumer.seek(TPS[0], 2)
        program.read()
        program.write()
    assert committed(broker) == {TPS[0]: 5, TPS[1]: 5}
    assert sorted(out(broker)) == [b"4", b"6", b"8", b"8"]


def test_a_consumer_that_commits_by_itself_or_has_not_read_is_refused(broker: Broker) -> None:
    put(broker, 2)
    with ExitStack() as stack:
        automatic = Program(stack, broker, "a", **{"enable.auto.commit": True})
        automatic.read()
        with pytest.raises(ConsumerStateError, match=r"enable\.auto\.commit=false"):
            automatic.write()
        fresh = Program(stack, broker, "b")
        with fresh.producer.transaction() as transaction, pytest.raises(ConsumerStateError, match=r"poll\(\) first"):
            transaction.send_offsets({TPS[0]: 0}, fresh.consumer)
        with fresh.producer.transaction() as transaction, pytest.raises(ConsumerStateError, match="not assigned"):
            transaction.send_offsets({TopicPartition("out", 0): 0}, fresh.consumer)


def test_copies_and_broker_that_die_and_sleep_at_random_write_each_input_once(broker: Broker) -> None:
    rng = random.Random(11)
    values = put(broker, RECORDS)
    with ExitStack() as stack:
        stacks = [stack.enter_context(ExitStack()) for _ in range(2)]
        workers = [_worker(one, broker, number) for number, one in enumerate(stacks)]
        for _ in range(TROUBLES):
            before = _total(broker)
            wait_until(lambda before=before: _total(broker) > min(before + 20, RECORDS - 1))  # type: ignore[misc]
            number = rng.randrange(2)
            trouble = rng.choice(("kill", "sleep", "sleep", "broker"))
            if trouble == "kill":
                workers[number].kill()
                workers[number] = _worker(stacks[number], broker, number)
            elif trouble == "sleep":
                _sleep(broker, workers[number])
            else:
                broker.kill()
                broker.start()
        wait_until(lambda: _total(broker) == RECORDS)
    with BlockingClient(ClientConfig(bootstrap_servers=broker.bootstrap_servers)) as client:
        for listing in client.list_transactions(state="open"):
            client.abort_transaction(listing.transactional_id)
    # A group's offsets may be told some milliseconds before the rows of their transaction are readable.
    wait_until(lambda: len(out(broker)) >= RECORDS, pause_s=0.05, what="the last commit is visible")
    assert sorted(out(broker)) == sorted(values)


def _worker(stack: ExitStack, broker: Broker, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, copy_worker.__file__, broker.bootstrap_servers, f"copy-{number}", str(PARTITIONS)]
    return stack.enter_context(child(command))


def _sleep(broker: Broker, worker: subprocess.Popen[str]) -> None:
    """One copy sleeps while the other continues."""
    before = _total(broker)
    worker.send_signal(signal.SIGSTOP)
    wait_until(lambda: _total(broker) > min(before + 20, RECORDS - 1))
    worker.send_signal(signal.SIGCONT)


def _total(broker: Broker) -> int:
    return sum(max(0, offset) for offset in committed(broker).values())
