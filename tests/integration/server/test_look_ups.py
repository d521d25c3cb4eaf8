"""Goal: look-ups by time end with their caller, and do not delay those of others."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from brokerd.ids import TopicIdPartition
from brokerd.partition.look_up import LookUpAbandoned, LookUps
from brokerd.wire.methods import UNARY
from brokerd.wire.v1 import offsets_pb2
from tests.support.daemon import RunningDaemon
from tests.support.raw_client import RawClient, values_batch
from tests.support.wait import DEADLINE_S, wait_until

LOOK_UP = UNARY["ListOffsets"]


class Held:
    """Look-ups by time, held until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[int] = []
        self.abandoned: list[int] = []
        self.go_on = threading.Event()
        look_up = LookUps.offset_for_timestamp

        def held(log: LookUps, timestamp_ms: int, **arguments: Any) -> Any:
            self.begun.append(timestamp_ms)
            assert self.go_on.wait(DEADLINE_S)
            try:
                return look_up(log, timestamp_ms, **arguments)
            except LookUpAbandoned:
                self.abandoned.append(timestamp_ms)
                raise

        monkeypatch.setattr(LookUps, "offset_for_timestamp", held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


def ask(client: RawClient, tp: TopicIdPartition, timestamp_ms: int) -> Any:
    """A call in progress."""
    asked = offsets_pb2.PartitionListOffsets(
        topic_id=tp.topic_id, partition=tp.partition, spec=offsets_pb2.OFFSET_SPEC_TIMESTAMP, timestamp=timestamp_ms
    )
    method: Any = client.channel.unary_unary(LOOK_UP.path, response_deserializer=LOOK_UP.response.FromString)
    return method.future(offsets_pb2.ListOffsetsRequest(partitions=[asked]).SerializeToString(), timeout=DEADLINE_S)


def test_a_look_up_ends_when_its_caller_is_gone(running: RunningDaemon, client: RawClient, held: Held) -> None:
    (tp,) = client.create_topic()
    client.producer().produce(tp, values_batch(tp))
    service: Any = running.daemon._service
    call = ask(client, tp, 5)
    wait_until(lambda: held.begun == [5])
    call.cancel()
    wait_until(lambda: service._calls == 0)
    held.go_on.set()
    wait_until(lambda: held.abandoned == [5])
    assert ask(client, tp, 0).result().results[0].offset == 0


def test_one_who_looks_up_without_end_leaves_a_thread_to_others(running: RunningDaemon, client: RawClient, held: Held) -> None:
    (tp,) = client.create_topic()
    client.producer().produce(tp, values_batch(tp))
    many = [ask(client, tp, 1) for _ in range(20)]
    wait_until(lambda: held.begun == [1, 1])
    with RawClient(running.address) as other:
        answer = ask(other, tp, 2)
        wait_until(lambda: held.begun == [1, 1, 2])
        held.go_on.set()
        assert answer.result().results[0].offset == 0
    assert [call.result().results[0].offset for call in many] == [0] * 20
