"""Nobody writes in another's name: a producer id is its principal's, whoever else may write to the same topic."""

from __future__ import annotations

from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1 import transaction_pb2
from tests.integration.security.conftest import ClientAs
from tests.support.identities import TOKENS
from tests.support.raw_client import RawClient, idempotent_batch


def init(client: RawClient, producer_id: int = -1, epoch: int = -1) -> tuple[int, int]:
    request = transaction_pb2.InitProducerIdRequest(producer_id=producer_id, producer_epoch=epoch)
    answer = client.call("InitProducerId", request)
    return int(answer.producer_id), int(answer.producer_epoch)


def write(client: RawClient, tp: TopicIdPartition, producer_id: int, sequence: int, epoch: int = 0) -> int:
    result = client.producer().produce(tp, idempotent_batch(tp, producer_id, sequence, epoch=epoch))
    return int(result.error.code)


def test_nobody_else_can_fence_a_producer_or_write_ahead_of_it(client_as: ClientAs) -> None:
    boss, writer = client_as(TOKENS["boss"]), client_as(TOKENS["writer"])
    (tp,) = boss.create_topic("events-ids")
    producer_id, epoch = init(writer)
    assert write(writer, tp, producer_id, 0) == 0
    refused = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert write(boss, tp, producer_id, 0, epoch=7) == refused, "would fence the writer"
    assert write(boss, tp, producer_id, 1) == refused, "would have the writer's next batch taken for a repetition"
    other_id, other_epoch = init(boss, producer_id, epoch)
    assert other_id != producer_id
    assert other_epoch == 0
    assert write(boss, tp, other_id, 0) == 0
    assert write(writer, tp, producer_id, 1) == 0
    assert init(writer, producer_id, epoch) == (producer_id, 1)
    assert write(writer, tp, producer_id, 0, epoch=1) == 0


def test_nobody_can_take_an_id_before_it_is_given(client_as: ClientAs) -> None:
    boss, writer = client_as(TOKENS["boss"]), client_as(TOKENS["writer"])
    (tp,) = boss.create_topic("events-early")
    next_id = init(boss)[0] + 1
    unknown = int(ErrorCode.UNKNOWN_PRODUCER_ID)
    assert write(boss, tp, next_id, 0, epoch=9) == unknown, "its producer outlived the broker's count of ids, and asks for another"
    assert init(boss, next_id, 0)[0] >= next_id
    producer_id, _ = init(writer)
    assert producer_id > next_id
    assert write(writer, tp, producer_id, 0) == 0
