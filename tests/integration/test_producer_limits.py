"""A real broker with limits below the producer's own: the producer obeys them, and no record is lost, repeated or reordered."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import pytest

from brokerd import Producer
from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ConsumerConfig
from brokerd.errors import MessageTooLargeError
from tests.support.daemon import DaemonProcess, running_daemon
from tests.support.reading import committed_values
from tests.support.records import key_values
from tests.support.wait import DEADLINE_S


@pytest.mark.parametrize("in_flight", [1, 5])
def test_batches_larger_than_the_topic_takes_are_split(tmp_path: Path, in_flight: int) -> None:
    values = [b"%06d" % number + b"." * 100 for number in range(20_000)]
    with running_daemon(tmp_path / "data") as running:
        with BlockingClient(ConsumerConfig(bootstrap_servers=running.address)) as client:
            client.create_topic("t", 1, {"max.message.bytes": "50000"})
        settings = {"bootstrap.servers": running.address, "max.in.flight.batches.per.partition": in_flight}
        with Producer(settings) as producer:
            for at in range(0, len(values), 2_000):
                producer.send_batch("t", key_values(values[at : at + 2_000]))
            refused = producer.send("t", b"x" * 60_000)
            last = producer.send("t", b"last")
            producer.flush(DEADLINE_S)
            with pytest.raises(MessageTooLargeError, match=r"one record of t-0 .*a record batch of 60\d+ bytes .*\(50000\)"):
                refused.result(0)
            assert last.result(0).offset == len(values)
            assert str(producer.first_error) == str(refused.exception(0))
        assert committed_values(running.address, "t") == {0: [*values, b"last"]}


def test_a_request_names_no_more_partitions_than_the_broker_takes(tmp_path: Path) -> None:
    partitions, rounds = 20, 20
    with DaemonProcess(tmp_path / "data", settings={"max.partitions.per.request": 7}) as daemon:
        with BlockingClient(ConsumerConfig(bootstrap_servers=daemon.address)) as client:
            client.create_topic("t", partitions)
        sent: dict[int, list[bytes]] = defaultdict(list)
        with Producer({"bootstrap.servers": daemon.address, "linger.ms": 5, "reconnect.backoff.ms": 1}) as producer:
            for number in range(rounds):
                if number == rounds // 2:
                    # Another process at the same address has a lower limit.
                    producer.flush(DEADLINE_S)
                    daemon.kill()
                    daemon.settings["max.partitions.per.request"] = 3
                    daemon.restart()
                for partition in range(partitions):
                    value = b"%d-%d" % (partition, number)
                    producer.send("t", value, partition=partition)
                    sent[partition].append(value)
            producer.flush(DEADLINE_S)
            assert producer.first_error is None
        assert committed_values(daemon.address, "t") == sent


def test_a_request_is_no_larger_than_the_broker_takes(tmp_path: Path) -> None:
    """Such a broker ends the stream on requests of the producer's own size, and on batches or records above its limit."""
    mib, partitions = 1_048_576, 4
    rng = random.Random(1)
    sent = {partition: [rng.randbytes(mib // 4) for _ in range(16)] for partition in range(partitions)}
    with running_daemon(tmp_path / "data", message_max_bytes=mib, socket_request_max_bytes=2 * mib) as running:
        with BlockingClient(ConsumerConfig(bootstrap_servers=running.address)) as client:
            client.create_topic("t", partitions)
        for batch_size in (mib, 4 * mib):
            with Producer(
                {
                    "bootstrap.servers": running.address,
                    "batch.size": batch_size,
                }
            ) as producer:
                for values in zip(*sent.values(), strict=True):
                    for partition, value in enumerate(values):
                        producer.send("t", value, partition=partition)
                refused = producer.send("t", rng.randbytes(3 * mib))
                producer.flush(DEADLINE_S)
                with pytest.raises(MessageTooLargeError, match=r"one record of t.*socket\.request\.max\.bytes.*max\.request\.size"):
                    refused.result(0)
                assert str(producer.first_error) == str(refused.exception(0))
                assert sum(total.record_count for total in producer.delivered().values()) == partitions * 16
        assert committed_values(running.address, "t") == {partition: 2 * values for partition, values in sent.items()}
