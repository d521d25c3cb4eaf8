"""Goal: over a failing network, and while the daemon dies, each transaction of a producer is read completely and once, or not at
all, and its program always learns which. Method: a program writes numbered parts, each in the transaction of its number, and leaves
some by an exception; after an error it retries the same number.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.clock import SystemClock
from brokerd.config.client import ConsumerConfig
from brokerd.errors import AlreadyCommittedError, BrokerdError, InvalidTxnStateError, TxnAbortedError
from tests.support.clock import ManualClock
from tests.support.daemon import DaemonProcess, running_daemon
from tests.support.proxy import Proxy
from tests.support.reading import committed_values
from tests.support.scale import TEST_SCALE
from tests.support.wait import DEADLINE_S, wait_until

PARTITIONS = 3
PARTS = 60 * min(10, TEST_SCALE)
KILLS = 4 * min(10, TEST_SCALE)
SETTINGS = {
    "linger.ms": 0,
    "batch.size": 2_000,
    "reconnect.backoff.ms": 1,
    "retry.backoff.ms": 1,
    "transactional.id": "orders",
}
ATTEMPTS_MAX = 100


class LeftError(Exception):
    """Leaves a transaction's block midway."""


def write_part(producer: Producer, version: int, rng: random.Random, values: dict[int, list[bytes]]) -> None:
    """Writes one part in the transaction of its number, and retries until it is committed."""
    for _ in range(ATTEMPTS_MAX):
        is_left = rng.random() < 0.2
        try:
            with producer.transaction(version):
                for partition, part in values.items():
                    for value in part:
                        producer.send("t", value, partition=partition)
                if is_left:
                    producer.flush(DEADLINE_S)
                    raise LeftError
        except AlreadyCommittedError:
            return
        except (LeftError, TxnAbortedError, InvalidTxnStateError):
            continue
        return
    raise AssertionError(f"part {version} is not committed after {ATTEMPTS_MAX} attempts")


def write_all(address: str, disturb: Callable[[int], None]) -> dict[int, list[bytes]]:
    """Writes all parts; returns what readers must see."""
    rng = random.Random(1)
    written: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    with Producer(SETTINGS | {"bootstrap.servers": address}) as producer:
        producer.partitions_for("t")
        for version in range(PARTS):
            disturb(version)
            values = {
                partition: [b"%d %d %d" % (version, partition, number) for number in range(rng.randrange(60))]
                for partition in range(PARTITIONS)
                if rng.random() < 0.7
            }
            write_part(producer, version, rng, values)
            for partition, part in values.items():
                written[partition] += part
    return written


def test_connections_cut_at_any_byte_leave_each_transaction_whole(proxied: DaemonProcess, proxy: Proxy) -> None:
    rng = random.Random(2)

    def cut(_version: int) -> None:
        if rng.random() < 0.5:
            proxy.cut_after_request_bytes(rng.randint(1, 3_000))
        else:
            proxy.cut_before_answer_bytes(rng.randint(1, 600))

    written = write_all(f"127.0.0.1:{proxy.port}", cut)
    assert proxy.cut_count > PARTS // 3
    assert committed_values(proxied.address, "t") == written
    with BlockingClient(ConsumerConfig(bootstrap_servers=proxied.address)) as client:
        found = client.find_transaction("orders")
        assert found is not None
        assert found.last_version == PARTS - 1


def test_a_broker_killed_again_and_again_leaves_each_transaction_whole(proxied: DaemonProcess, proxy: Proxy) -> None:
    rng = random.Random(3)
    kills = sorted(rng.sample(range(PARTS), KILLS))

    def kill(version: int) -> None:
        if version in kills:
            proxied.kill()
            proxied.restart()

    written = write_all(f"127.0.0.1:{proxy.port}", kill)
    assert committed_values(proxied.address, "t") == written


def test_operators_see_and_abort_what_is_open(proxied: DaemonProcess) -> None:
    with (
        BlockingClient(ConsumerConfig(bootstrap_servers=proxied.address)) as client,
        Producer(SETTINGS | {"bootstrap.servers": proxied.address, "client.id": "shop"}) as producer,
    ):

        def look_and_abort() -> None:
            producer.send("t", b"x", partition=0).result(DEADLINE_S)
            (listing,) = client.list_transactions(state="open", prefix="ord")
            assert (listing.transactional_id, listing.txn_version, listing.open_members) == ("orders", 5, 1)
            assert listing.owner == "producer shop"
            (open_member,) = client.describe_transaction("orders").members
            assert open_member.txn_version == 5
            assert [(part.topic, part.partition, part.first_offset) for part in open_member.partitions] == [("t", 0, 0)]
            (hanging,) = client.find_hanging_transactions(0).transactions
            assert (hanging.transactional_id, hanging.partition.last_stable_offset) == ("orders", 0)
            assert client.abort_transaction("orders", open_member.execution_id) == 1

        with pytest.raises(BrokerdError), producer.transaction(5):
            look_and_abort()
        assert client.list_transactions(state="open") == []
        assert client.find_transaction("order") is None


def test_heartbeats_keep_a_slow_block_open(tmp_path: Path) -> None:
    """The broker's clock advances only after each heartbeat, by two thirds of the time-out, so the test works on slow machines."""
    timeout_ms, clock = 1_000, ManualClock(wall_ms=SystemClock().wall_ms())  # the client sets the time stamps
    with running_daemon(tmp_path / "data", clock=clock) as running:
        settings = SETTINGS | {"bootstrap.servers": running.address, "transaction.timeout.ms": timeout_ms}
        with BlockingClient(ConsumerConfig(bootstrap_servers=running.address)) as client, Producer(settings) as producer:
            client.create_topic("t", PARTITIONS)

            def is_renewed() -> bool:
                (member,) = client.describe_transaction("orders").members
                return member.expires_in_ms == timeout_ms

            with producer.transaction():
                producer.send("t", b"x", partition=0).result(DEADLINE_S)
                for _ in range(4):
                    clock.advance(timeout_ms * 2 // 3)
                    wait_until(is_renewed)
                (member,) = client.describe_transaction("orders").members
                assert member.age_ms > 2 * timeout_ms
            assert client.list_transactions()[0].last_version == 0
        assert committed_values(running.address, "t")[0] == [b"x"]
