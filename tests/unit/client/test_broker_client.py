"""Goal: calls retry temporary failures, raise final ones at once, and report where and how long they tried."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any, cast

import grpc
import pytest

from brokerd.client import offsets, topics
from brokerd.client.blocking import BlockingClient, LoopThread
from brokerd.client.broker_client import BrokerClient
from brokerd.client.connection import Connection
from brokerd.client.metadata import Nodes
from brokerd.client.offsets import OffsetAndTimestamp, OffsetSpec
from brokerd.clock import SystemClock
from brokerd.config.client import ClientConfig
from brokerd.errors import (
    AuthenticationError,
    BrokerdError,
    BrokerUnreachableError,
    Fate,
    InvalidRequestError,
    NotReadyError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    WireError,
)
from brokerd.ids import ProducerIdAndEpoch, TopicIdPartition
from brokerd.wire.errors import to_proto
from brokerd.wire.v1.topics_pb2 import AlterPartitionReassignmentsResponse, NewTopic, PartitionReassignmentResult
from tests.support.clock import HastyClock
from tests.support.fake_broker import FakeBroker, fake_broker
from tests.support.ports import held_port
from tests.support.wait import DEADLINE_S, wait_until


@pytest.fixture
def silent_address() -> Iterator[str]:
    """The address of a server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def config(servers: str) -> ClientConfig:
    return ClientConfig(bootstrap_servers=servers, retry_backoff_ms=1, retry_backoff_max_ms=2)


@pytest.mark.parametrize(
    "code",
    [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED],
)
def test_passing_failures_are_repeated(broker: FakeBroker, client: BlockingClient, code: grpc.StatusCode) -> None:
    broker.fail_calls = [code, code]
    assert client.metadata().nodes
    assert broker.fail_calls == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequestError),
        (grpc.StatusCode.UNIMPLEMENTED, UnsupportedVersionError),
        (grpc.StatusCode.PERMISSION_DENIED, AuthenticationError),
        (grpc.StatusCode.INTERNAL, WireError),
    ],
)
def test_final_failures_are_raised_at_once(
    broker: FakeBroker, client: BlockingClient, code: grpc.StatusCode, kind: type[Exception]
) -> None:
    client.server_info()
    broker.fail_calls = [code]
    with pytest.raises(kind, match="told to fail"):
        client.metadata()
    assert broker.calls["Metadata"] == 1


def test_unreachable_broker_is_named_with_the_time_it_was_tried() -> None:
    with (
        held_port() as port,
        BlockingClient(config(f"127.0.0.1:{port}"), HastyClock()) as client,
        pytest.raises(
            BrokerUnreachableError, match=rf"no broker responded at 127\.0\.0\.1:{port} in \d+\.\d s: Connection refused"
        ),
    ):
        client.metadata()


def test_second_bootstrap_server_is_tried_when_the_first_is_gone(broker: FakeBroker) -> None:
    with held_port() as gone, BlockingClient(config(f"127.0.0.1:{gone},127.0.0.1:{broker.port}")) as client:
        assert client.server_info().software_version == "9.9"


def test_second_bootstrap_server_has_its_time_when_the_first_is_silent(broker: FakeBroker, silent_address: str) -> None:
    """The first attempt at an address ends after 1 s. Each unanswered one doubles the next, so that a slow machine succeeds too."""
    with BlockingClient(
        ClientConfig(bootstrap_servers=f"{silent_address},127.0.0.1:{broker.port}", api_timeout_ms=9_000)
    ) as client:
        assert client.server_info().software_version == "9.9"


def test_bootstrap_server_that_was_waited_for_in_vain_is_not_the_next_one_asked(
    broker: FakeBroker, silent_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller gives up before the connection attempt does, as a producer with a short request.timeout.ms may."""
    monkeypatch.setattr("brokerd.client.broker_client._FIRST_ATTEMPT_MS", int(DEADLINE_S * 1_000))
    servers = f"{silent_address},127.0.0.1:{broker.port}"

    async def impatient() -> str:
        client = BrokerClient(config(servers), SystemClock(), is_retrying=False)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.server_info()
            return (await client.server_info()).software_version
        finally:
            await client.close()

    with contextlib.closing(LoopThread()) as loop:
        assert loop.run(impatient()) == "9.9"


def test_the_broker_that_responded_is_described_though_another_call_has_moved_on_meanwhile(
    broker: FakeBroker, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Connection.call

    async def call_while_another_fails(self: Connection, *arguments: Any, **options: Any) -> Any:
        response = await call(self, *arguments, **options)
        client.broker_client._nodes.failed(client.broker_client._nodes.any)
        return response

    monkeypatch.setattr(Connection, "call", call_while_another_fails)
    client.broker_client._nodes = Nodes((f"127.0.0.1:{broker.port}", "127.0.0.1:1"))
    assert client.server_info().software_version == "9.9"


async def test_a_wait_for_records_that_is_cancelled_leaves_no_fetch_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    parked = [asyncio.Event(), asyncio.Event()]
    ended = []

    async def park(_client: object, node_id: int, *_rest: object) -> None:
        parked[node_id].set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(node_id)

    class Client:
        async def leader(self, tp: TopicIdPartition) -> int:
            return tp.partition

        async def chunks(self, _node_id: int, tps: list[TopicIdPartition]) -> list[list[TopicIdPartition]]:
            return [tps]

    monkeypatch.setattr(offsets, "_parked_fetch", park)
    ends = {TopicIdPartition(bytes(16), number): 0 for number in range(2)}
    waiting = asyncio.create_task(offsets.wait_for_records(cast("BrokerClient", Client()), ends, "read_committed", timeout_ms=1))
    for event in parked:
        await event.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert sorted(ended) == [0, 1]


def test_broker_that_comes_back_is_found_again(client: BlockingClient, broker: FakeBroker) -> None:
    with held_port() as port, BlockingClient(config(f"127.0.0.1:{port}")) as other:
        for _ in range(2):
            with fake_broker(port):
                assert other.metadata().nodes


def test_broker_of_another_contract_is_refused(broker: FakeBroker, client: BlockingClient) -> None:
    broker.wire_versions = (2, 3)
    with pytest.raises(UnsupportedVersionError, match=r"speaks wire versions 2 to 3; this client .* speaks 1"):
        client.metadata()


def test_unknown_topic_is_told_at_once_and_by_name(broker: FakeBroker, client: BlockingClient) -> None:
    broker.create("known", 3)
    metadata = client.metadata(["known", "nwonk"])
    assert metadata.topic("known").partition_count == 3
    with pytest.raises(UnknownTopicOrPartitionError, match="nwonk"):
        metadata.topic("nwonk")
    assert broker.calls["Metadata"] == 1


def test_create_topic_whose_answer_was_lost_says_so(broker: FakeBroker, client: BlockingClient) -> None:
    client.create_topic("t", 2)
    assert len(broker.topics["t"]) == 2
    with pytest.raises(TopicAlreadyExistsError) as plain:
        client.create_topic("t")
    assert "earlier attempt" not in str(plain.value)
    broker.fail_calls = [grpc.StatusCode.UNAVAILABLE]
    with pytest.raises(TopicAlreadyExistsError, match="earlier attempt of this call was lost"):
        client.create_topic("t")


def test_an_unclean_election_whose_answer_was_lost_says_so() -> None:
    class AnswersTheRetry:
        def __init__(self, *failures: BrokerdError) -> None:
            self._failures = failures

        async def call(self, *_: object, failures: list[BrokerdError]) -> None:
            failures.extend(self._failures)
            raise InvalidRequestError("node 2 is in sync and alive")

    for failure, validate_only, is_noted in (
        (BrokerUnreachableError("gone"), False, True),
        (BrokerUnreachableError("gone"), True, False),
        (NotReadyError("etcd does not answer", fate=Fate.NOT_APPENDED), False, False),
    ):
        client = cast("BrokerClient", AnswersTheRetry(failure))
        with pytest.raises(InvalidRequestError, match="in sync") as refused:
            asyncio.run(topics.elect_unclean_leader(client, "t", 0, validate_only=validate_only))
        assert str(refused.value).endswith("so this call may have elected a copy") == is_noted


def test_create_topics_answers_each_on_its_own(broker: FakeBroker, client: BlockingClient) -> None:
    broker.create("old")
    results = client.create_topics([NewTopic(name="old"), NewTopic(name="new", partitions=2)])
    assert isinstance(results["old"], TopicAlreadyExistsError)
    assert results["new"] == broker.topics["new"][0].tp.topic_id


def test_a_topic_of_which_the_broker_could_not_decide_is_asked_for_again(broker: FakeBroker) -> None:
    waits = NotReadyError("etcd does not answer", fate=Fate.NOT_APPENDED)
    unknown = NotReadyError("not heard of it yet", fate=Fate.UNKNOWN)
    with BlockingClient(config(f"127.0.0.1:{broker.port}")) as client:
        broker.errors["CreateTopics"] = [waits, unknown, waits, waits]
        results = client.create_topics([NewTopic(name=name) for name in ("a", "b", "c")])
        for name in ("a", "c"):
            assert results[name] == broker.topics[name][0].tp.topic_id
        assert str(results["b"]) == "not heard of it yet"
        broker.errors["CreateTopics"] = [waits]
        with pytest.raises(TopicAlreadyExistsError) as plain:
            client.create_topic("c")
        assert "earlier attempt" not in str(plain.value)
    broker.errors["CreateTopics"] = [waits] * 10_000
    with BlockingClient(config(f"127.0.0.1:{broker.port}"), HastyClock()) as client, pytest.raises(NotReadyError, match="etcd"):
        client.create_topic("d")
    assert 9_900 < len(broker.errors["CreateTopics"]) < 10_000


def test_a_topic_that_was_asked_for_again_has_the_fate_of_the_last_attempt() -> None:
    class LastAttemptIsLost:
        async def retried(self, attempt: Any, **_: object) -> None:
            with contextlib.suppress(NotReadyError):
                await attempt(1)
            raise NotReadyError("etcd does not answer", fate=Fate.UNKNOWN)

    async def ask(_names: object, _timeout_ms: int) -> dict[str, bytes | WireError]:
        return {"a": b"id", "b": NotReadyError("etcd does not answer", fate=Fate.NOT_APPENDED)}

    client: Any = LastAttemptIsLost()
    results = asyncio.run(topics._each(client, ["a", "b"], ask, []))
    assert results["a"] == b"id"
    assert isinstance(results["b"], NotReadyError)
    assert results["b"].fate is Fate.UNKNOWN


def test_a_move_is_asked_for_again_while_it_cannot_be_written(broker: FakeBroker, client: BlockingClient) -> None:
    errors: list[Any] = [to_proto(NotReadyError("etcd does not answer", fate=Fate.NOT_APPENDED)), None]

    def reassign(_request: object) -> AlterPartitionReassignmentsResponse:
        result = PartitionReassignmentResult(name="t", error=errors.pop(0))
        return AlterPartitionReassignmentsResponse(results=[result])

    broker._AlterPartitionReassignments = reassign  # type: ignore[attr-defined]
    client.reassign_partition("t", 0, [1])
    assert not errors


def test_list_offsets_repeats_what_may_succeed_and_keeps_what_is_final(broker: FakeBroker, client: BlockingClient) -> None:
    partitions = broker.create("t", 2)
    partitions[0].end_offset = 42
    gone = TopicIdPartition(b"g" * 16, 0)
    missing = TopicIdPartition(partitions[0].tp.topic_id, 9)
    broker.errors["ListOffsets"] = [NotReadyError("starting"), NotReadyError("starting")]
    answers = client.list_offsets(
        {partitions[0].tp: OffsetSpec.LATEST, gone: OffsetSpec.LATEST, partitions[1].tp: OffsetSpec.EARLIEST, missing: 5}
    )
    assert list(answers) == [partitions[0].tp, gone, partitions[1].tp, missing]
    assert answers[partitions[0].tp] == OffsetAndTimestamp(42, 0, 0)
    assert answers[partitions[1].tp] == OffsetAndTimestamp(0, 0, 0)
    assert isinstance(answers[gone], UnknownTopicIdError)
    assert isinstance(answers[missing], UnknownTopicOrPartitionError)


def test_list_offsets_that_never_succeeds_answers_with_the_last_error(broker: FakeBroker) -> None:
    (partition,) = broker.create("t")
    broker.errors["ListOffsets"] = [NotReadyError("starting")] * 10_000
    with BlockingClient(config(f"127.0.0.1:{broker.port}"), HastyClock()) as client:
        assert isinstance(client.list_offsets({partition.tp: OffsetSpec.LATEST})[partition.tp], NotReadyError)
    # HastyClock leaves no time for a fourth attempt: with a timeout of 1 ms, its outcome would be a race.
    assert 10_000 - len(broker.errors["ListOffsets"]) == 3


def test_init_producer_id_new_and_raised(broker: FakeBroker, client: BlockingClient) -> None:
    broker.errors["InitProducerId"] = [NotReadyError("starting")]
    granted = client.init_producer_id()
    assert granted == ProducerIdAndEpoch(1001, 0)
    assert client.init_producer_id(granted) == ProducerIdAndEpoch(1001, 1)


def test_a_host_that_does_not_answer_is_named_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as taken:  # bound, but not listening
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        loop_thread = LoopThread()
        client = BrokerClient(config(address), SystemClock())
        loop_thread.at_close(client.close)
        call = loop_thread.submit(client.metadata(["t"]))
        wait_until(lambda: f"(at {address}): retrying for up to" in caplog.text)
        assert not call.has_ended
        loop_thread.close()
    assert "Connection refused" in caplog.text
    assert caplog.text.count(f"(at {address}): retrying") == 1


def test_topics_that_are_remembered_are_bounded_and_asked_again(
    broker: FakeBroker, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerd.client.broker_client._TOPICS_MAX", 3)
    tps = [broker.create(f"t{number}")[0].tp for number in range(5)]
    assert len(client.metadata().topics) == 5
    assert len(client.broker_client._topics) == 3
    for tp in tps:
        assert client.loop_thread.run(client.broker_client.leader(tp)) == 0
    asked = broker.calls["Metadata"]
    assert client.loop_thread.run(client.broker_client.leader(tps[-1])) == 0
    assert broker.calls["Metadata"] == asked, "the last ones are remembered"
    found = client.list_offsets(dict.fromkeys(tps, OffsetSpec.LATEST))
    assert [isinstance(found[tp], OffsetAndTimestamp) for tp in tps] == [True] * 5
