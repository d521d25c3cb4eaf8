"""No principal can write as another: a producer id belongs to one principal, even if others may write to the same topic."""

from __future__ import annotations

from pathlib import Path

from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition, producer_number
from brokerd.wire.v1 import transaction_pb2
from tests.integration.security.conftest import ClientAs, with_token
from tests.support.daemon import running_daemon
from tests.support.identities import TOKENS
from tests.support.raw_client import RawClient, idempotent_batch

UNKNOWN = int(ErrorCode.UNKNOWN_PRODUCER_ID)


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
    assert write(boss, tp, producer_id, 0, epoch=7) == UNKNOWN, "would fence the writer"
    assert write(boss, tp, producer_id, 1) == UNKNOWN, "would have the writer's next batch taken for a repetition"
    assert write(boss, tp, producer_id, 0) == UNKNOWN, "would be acknowledged as a repetition of the writer's"
    other_id, other_epoch = init(boss, producer_id, epoch)
    assert other_id != producer_id
    assert other_epoch == 0
    assert write(boss, tp, other_id, 0) == 0
    assert write(writer, tp, producer_id, 1) == 0
    assert init(writer, producer_id, epoch) == (producer_id, 1)
    assert write(writer, tp, producer_id, 0, epoch=1) == 0


def test_an_id_that_a_principal_makes_up_is_no_other_s(client_as: ClientAs) -> None:
    boss, writer = client_as(TOKENS["boss"]), client_as(TOKENS["writer"])
    (tp,) = boss.create_topic("events-early")
    next_id = init(boss)[0] + 1
    assert write(boss, tp, next_id, 0, epoch=9) == 0
    producer_id, _ = init(writer)
    assert producer_number(producer_id) == producer_number(next_id)
    assert write(writer, tp, producer_id, 0) == 0


def test_a_restart_gives_nobody_s_id_to_another(tmp_path: Path, auth_file: Path) -> None:
    with running_daemon(tmp_path / "data", auth_file=str(auth_file)) as daemon:
        boss, writer = with_token(daemon.address, TOKENS["boss"]), with_token(daemon.address, TOKENS["writer"])
        (tp,) = boss.create_topic("events-ids")
        producer_id, _ = init(writer)
        assert write(writer, tp, producer_id, 0) == 0
    with running_daemon(tmp_path / "data", auth_file=str(auth_file)) as daemon:
        boss, writer = with_token(daemon.address, TOKENS["boss"]), with_token(daemon.address, TOKENS["writer"])
        assert write(boss, tp, producer_id, 0) == UNKNOWN
        assert write(boss, tp, producer_id, 0, epoch=1) == UNKNOWN
        assert init(boss, producer_id, 0)[0] != producer_id
        assert write(writer, tp, producer_id, 1) == 0
        assert init(writer, producer_id, 0) == (producer_id, 1)


def test_a_producer_from_before_authentication_asks_for_another_id(tmp_path: Path, auth_file: Path) -> None:
    with running_daemon(tmp_path / "data") as daemon:
        anybody = with_token(daemon.address, None)
        (tp,) = anybody.create_topic("events-ids")
        producer_id, _ = init(anybody)
        assert write(anybody, tp, producer_id, 0) == 0
    with running_daemon(tmp_path / "data", auth_file=str(auth_file)) as daemon:
        writer = with_token(daemon.address, TOKENS["writer"])
        assert write(writer, tp, producer_id, 1) == UNKNOWN
        other_id, epoch = init(writer, producer_id, 0)
        assert epoch == 0
        assert write(writer, tp, other_id, 0) == 0
    with running_daemon(tmp_path / "data") as daemon:
        assert write(with_token(daemon.address, None), tp, other_id, 1) == 0, "switched off again, everybody may do everything"
