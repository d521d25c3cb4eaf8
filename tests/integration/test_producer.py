"""Goal: over a failing network the producer loses, repeats and reorders nothing. Method: a TCP proxy before a real daemon resets
the connection at random bytes of requests and responses while records are sent.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from brokerd import Producer
from tests.support.daemon import DaemonProcess
from tests.support.proxy import Proxy
from tests.support.reading import committed_values
from tests.support.records import key_values
from tests.support.scale import TEST_SCALE
from tests.support.wait import DEADLINE_S

CUTS = 100 * min(10, TEST_SCALE)
PARTITIONS = 3
FAST = {"linger.ms": 0, "batch.size": 2_000, "reconnect.backoff.ms": 1, "retry.backoff.ms": 1, "request.timeout.ms": 30_000}


@pytest.mark.parametrize("in_flight", [1, 5])
def test_connections_cut_at_any_byte_lose_and_repeat_nothing(proxied: DaemonProcess, proxy: Proxy, in_flight: int) -> None:
    rng = random.Random(in_flight)
    address = f"127.0.0.1:{proxy.port}"
    settings = FAST | {"bootstrap.servers": address, "max.in.flight.batches.per.partition": in_flight}
    sent: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    futures = []
    number = 0
    with Producer(settings) as producer:
        producer.partitions_for("t")
        while proxy.cut_count < CUTS // 2:
            before = proxy.cut_count
            if rng.random() < 0.5:
                proxy.cut_after_request_bytes(rng.randint(1, 6_000))
            else:
                proxy.cut_before_answer_bytes(rng.randint(1, 300))
            while proxy.cut_count == before:
                for _ in range(rng.randint(1, 4)):
                    partition, count = rng.randrange(PARTITIONS), rng.randint(1, 30)
                    values = [b"%08d" % n + b"x" * 40 for n in range(number, number + count)]
                    number += count
                    sent[partition] += values
                    future = producer.send_batch("t", key_values(values), partitions=np.full(count, partition, np.int32))
                    futures.append((partition, len(sent[partition]) - count, count, future))
                if rng.random() < 0.5:
                    producer.flush(DEADLINE_S)
        producer.flush(DEADLINE_S)
        assert producer.first_error is None
        delivered = {tp.partition: total.record_count for tp, total in producer.delivered().items()}
    assert delivered == {partition: len(values) for partition, values in sent.items() if values}
    for partition, first, count, future in futures:
        offset = first
        for part in future.result(0).rows:
            assert (part.partition, part.offset in (offset, -1)) == (partition, True)
            offset += part.record_count
        assert offset == first + count
    assert committed_values(proxied.address, "t") == sent


def test_a_broker_killed_under_load_is_ridden_over(proxied: DaemonProcess, proxy: Proxy) -> None:
    address = f"127.0.0.1:{proxy.port}"
    sent: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    with Producer(FAST | {"bootstrap.servers": address, "max.in.flight.batches.per.partition": 5}) as producer:
        for number in range(3_000):
            value = b"%08d" % number
            producer.send("t", value, partition=number % PARTITIONS)
            sent[number % PARTITIONS].append(value)
            if number in (700, 1_900):
                proxied.kill()
                proxied.restart()
        producer.flush(DEADLINE_S)
        assert producer.first_error is None
    assert committed_values(proxied.address, "t") == sent
