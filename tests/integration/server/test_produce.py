"""Produce over the wire: sequences, acks, order, and refusals with their fates."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from brokerd.errors import ErrorCode, Fate
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1 import produce_pb2, topics_pb2, transaction_pb2
from tests.support.daemon import RunningDaemon
from tests.support.files import MemoryFiles
from tests.support.gate import Gate
from tests.support.raw_client import RawClient, RawProducer, code_of, idempotent_batch, values_batch
from tests.support.records import key_values, new_batch
from tests.support.wait import wait_until


def test_a_refused_sequence_says_what_is_expected_and_appends_nothing(client: RawClient) -> None:
    """tests/integration/test_produce_walks.py checks the other responses of the table."""
    (tp,) = client.create_topic()
    stream, producer_id = client.producer(), client.new_producer_id()

    def send(sequence: int, count: int = 1, *, epoch: int = 3) -> produce_pb2.PartitionProduceResult:
        return stream.produce(tp, idempotent_batch(tp, producer_id, sequence, count, epoch=epoch))

    unknown = send(1)
    assert code_of(unknown) is ErrorCode.UNKNOWN_PRODUCER_ID
    assert send(0, 3).base_offset == 0
    gap = send(4)
    assert code_of(gap) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (gap.base_offset, gap.error.expected_sequence, gap.error.current_epoch) == (-1, 3, 3)
    assert Fate(gap.error.fate) is Fate.NOT_APPENDED
    fenced = send(3, epoch=2)
    assert code_of(fenced) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert fenced.error.current_epoch == 3
    assert client.latest(tp) == 3


def test_a_negative_sequence_is_no_sequence(client: RawClient) -> None:
    (tp,) = client.create_topic()
    batch = values_batch(tp, producer_id=client.new_producer_id(), producer_epoch=0, base_sequence=-5)
    assert code_of(client.producer().produce(tp, batch)) is ErrorCode.INVALID_REQUEST


def test_a_transactional_batch_of_no_member_is_refused(client: RawClient) -> None:
    (tp,) = client.create_topic()
    batch = values_batch(tp, producer_id=client.new_producer_id(), producer_epoch=0, base_sequence=0, attributes=1)
    result = client.producer().produce(tp, batch)
    assert code_of(result) is ErrorCode.INVALID_TXN_STATE
    assert Fate(result.error.fate) is Fate.NOT_APPENDED


def test_two_batches_of_one_partition_are_refused_whole(client: RawClient) -> None:
    first, second = client.create_topic(partitions=2)
    stream = client.producer()
    stream.post([(first, values_batch(first)), (second, values_batch(second)), (first, values_batch(first))])
    answer = stream.answer()
    assert code_of(answer) is ErrorCode.INVALID_REQUEST
    assert Fate(answer.error.fate) is Fate.NOT_APPENDED
    assert not answer.results
    assert client.latest(first) == client.latest(second) == 0


@pytest.mark.parametrize("fields", [{"transactional_id": "x"}, {"member_id": b"x" * 16}])
def test_other_batches_in_a_request_of_a_transaction_are_refused(client: RawClient, fields: dict[str, Any]) -> None:
    (tp,) = client.create_topic()
    stream = client.producer()
    stream.post([(tp, values_batch(tp))], **fields)
    assert code_of(stream.answer().results[0]) is ErrorCode.INVALID_TXN_STATE
    assert client.latest(tp) == 0


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_other_acks_are_refused(client: RawClient, acks: int) -> None:
    (tp,) = client.create_topic()
    stream = client.producer()
    stream.post([(tp, values_batch(tp))], acks=acks)
    assert code_of(stream.answer()) is ErrorCode.INVALID_REQUIRED_ACKS
    assert client.latest(tp) == 0


def test_unknown_topics_and_partitions_have_errors_of_their_own_beside_good_ones(client: RawClient) -> None:
    (tp,) = client.create_topic()
    no_topic, no_partition = TopicIdPartition(b"n" * 16, 0), TopicIdPartition(tp.topic_id, 7)
    stream = client.producer()
    stream.post([(no_topic, values_batch(no_topic)), (tp, values_batch(tp)), (no_partition, values_batch(no_partition))])
    results = stream.answer().results
    assert [code_of(result) for result in results] == [
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert [Fate(result.error.fate) for result in results] == [Fate.NOT_APPENDED, Fate.UNSPECIFIED, Fate.NOT_APPENDED]
    assert [(result.topic_id, result.partition) for result in results] == [no_topic, tp, no_partition]


def test_a_batch_of_another_partition_never_passes(client: RawClient) -> None:
    first, second = client.create_topic(partitions=2)
    result = client.producer().produce(second, values_batch(first))
    assert code_of(result) is ErrorCode.CORRUPT_MESSAGE
    assert client.latest(second) == 0


@pytest.mark.parametrize(("size_delta", "code"), [(-8, ErrorCode.NONE), (0, ErrorCode.NONE), (8, ErrorCode.MESSAGE_TOO_LARGE)])
def test_a_batch_as_large_as_the_limit_is_accepted_and_one_step_more_is_not(
    client: RawClient, size_delta: int, code: ErrorCode
) -> None:
    limit = 4_096
    (tp,) = client.create_topic(max_message_bytes=str(limit))
    batch = _batch_of_size(tp, limit + size_delta)
    result = client.producer().produce(tp, batch)
    assert code_of(result) is code
    if code is not ErrorCode.NONE:
        assert str(limit) in result.error.message
        assert str(limit + size_delta) in result.error.message
        assert "max.message.bytes" in result.error.message


def _batch_of_size(tp: TopicIdPartition, size: int) -> pa.Buffer:
    """A batch of exactly this size. Batches are padded to 8 bytes, values to 64: payloads grow in steps, a key fills the rest."""
    for value_size in range(size - 1_500, size):
        for key_size in (0, 64, 128):
            batch = new_batch(key_values([b"v" * value_size], keys=[b"k" * key_size]), tp=tp)
            if batch.size == size:
                return batch
    raise AssertionError(f"no batch of {size} bytes")


def test_requests_are_answered_in_order_and_none_answers_acks_0(client: RawClient) -> None:
    (tp,) = client.create_topic()
    stream = client.producer()
    for acks in (-1, 0, 1, 0, -1, 1):
        stream.post([(tp, values_batch(tp))], acks=acks)
    answers = [stream.answer() for _ in range(4)]
    assert [answer.correlation_id for answer in answers] == [1, 3, 5, 6]
    assert [answer.results[0].base_offset for answer in answers] == [0, 2, 4, 5]


def test_pipelined_sequences_are_judged_one_after_the_other_without_waiting(client: RawClient, files: MemoryFiles) -> None:
    (tp,) = client.create_topic()
    producer_id = client.new_producer_id()
    stream = client.producer()
    with Gate(files, "fdatasync") as gate:
        for sequence in range(50):
            stream.post([(tp, idempotent_batch(tp, producer_id, sequence))])
        stream.post([(tp, idempotent_batch(tp, producer_id, 49))], acks=1)
        gate.wait_until_reached()
        wait_until(lambda: client.describe().partitions[0].log_end_offset == 50)
        before = files.sync_count
    offsets = [stream.answer().results[0].base_offset for _ in range(51)]
    assert offsets == [*range(50), 49]
    assert files.sync_count - before < 10, "what came while a flush was under way went with the next one"


def test_acks_1_is_answered_while_the_disk_is_slow_and_acks_all_is_not(
    running: RunningDaemon, client: RawClient, files: MemoryFiles
) -> None:
    (tp,) = client.create_topic()
    fast, slow = client.producer(), client.producer()
    with Gate(files, "fdatasync") as gate:
        slow.post([(tp, values_batch(tp))])
        gate.wait_until_reached()
        assert fast.produce(tp, values_batch(tp), acks=1).base_offset == 1
        assert client.latest(tp) == 0, "nothing is visible before it is durable"
        assert len(running.daemon.broker.produce_purgatory) == 1
    assert slow.answer().results[0].base_offset == 0
    assert client.latest(tp) >= 1


def test_a_duplicate_waits_until_its_first_copy_is_durable(client: RawClient, files: MemoryFiles) -> None:
    (tp,) = client.create_topic()
    producer_id = client.new_producer_id()
    batch = idempotent_batch(tp, producer_id, 0)
    first, second = client.producer(), client.producer()
    with Gate(files, "fdatasync") as gate:
        first.post([(tp, batch)])
        gate.wait_until_reached()
        second.post([(tp, batch)], timeout_ms=100)
        answer = second.answer()
        assert code_of(answer.results[0]) is ErrorCode.REQUEST_TIMED_OUT, "not acknowledged before it is durable"
        assert Fate(answer.results[0].error.fate) is Fate.UNKNOWN
    assert first.answer().results[0].base_offset == 0
    assert second.produce(tp, batch).base_offset == 0
    assert client.latest(tp) == 1


def test_a_duplicate_whose_offset_is_not_known_waits_until_it_is_durable(client: RawClient, files: MemoryFiles) -> None:
    """It is a part of a batch that was split after its first response was lost."""
    (tp,) = client.create_topic()
    producer_id = client.new_producer_id()
    first, second = client.producer(), client.producer()
    with Gate(files, "fdatasync") as gate:
        first.post([(tp, idempotent_batch(tp, producer_id, 0, 2))])
        gate.wait_until_reached()
        second.post([(tp, idempotent_batch(tp, producer_id, 0))], timeout_ms=100)
        result = second.answer().results[0]
        assert code_of(result) is ErrorCode.REQUEST_TIMED_OUT, "the producer takes the other error for an acknowledgement"
        assert Fate(result.error.fate) is Fate.UNKNOWN
    assert first.answer().results[0].base_offset == 0
    assert code_of(second.produce(tp, idempotent_batch(tp, producer_id, 0))) is ErrorCode.DUPLICATE_SEQUENCE_NUMBER


def test_a_failed_flush_is_an_unknown_fate_and_stops_this_log_alone(client: RawClient, files: MemoryFiles) -> None:
    bad, good = client.create_topic(partitions=2)
    stream = client.producer()
    stream.produce(bad, values_batch(bad))
    with Gate(files, "fdatasync", path=bad.directory_name, error=5):
        stream.post([(bad, values_batch(bad)), (good, values_batch(good))])
        results = stream.answer().results
    assert [code_of(result) for result in results] == [ErrorCode.STORAGE_ERROR, ErrorCode.NONE]
    assert Fate(results[0].error.fate) is Fate.UNKNOWN
    again = stream.produce(bad, values_batch(bad))
    assert code_of(again) is ErrorCode.STORAGE_ERROR
    assert Fate(again.error.fate) is Fate.NOT_APPENDED
    assert stream.produce(good, values_batch(good)).base_offset == 1
    _, batches = client.fetcher().fetch({bad: 0})
    assert [batch.header.base_offset for batch in batches[0]] == [0], "what was durable is still read"


def test_a_full_disk_is_a_definite_error_and_appends_resume(client: RawClient, files: MemoryFiles) -> None:
    (tp,) = client.create_topic()
    stream = client.producer()
    stream.produce(tp, values_batch(tp))
    files.space_left = 100
    result = stream.produce(tp, values_batch(tp, size=1_000))
    assert code_of(result) is ErrorCode.STORAGE_ERROR
    assert result.error.retriable
    assert Fate(result.error.fate) is Fate.NOT_APPENDED
    files.space_left = None
    assert stream.produce(tp, values_batch(tp)).base_offset == 1


def test_a_deleted_topic_answers_whoever_waits_for_it(client: RawClient, files: MemoryFiles) -> None:
    (tp,) = client.create_topic()
    stream = client.producer()
    with Gate(files, "fdatasync", path=tp.directory_name) as gate:
        stream.post([(tp, values_batch(tp))])
        gate.wait_until_reached()
        client.delete_topic()
        result = stream.answer().results[0]
    assert code_of(result) is ErrorCode.UNKNOWN_TOPIC_ID
    assert Fate(result.error.fate) is Fate.UNKNOWN


def test_producer_ids_are_new_and_epochs_rise_until_they_end(client: RawClient) -> None:
    def ask(producer_id: int, epoch: int) -> tuple[int, int]:
        request = transaction_pb2.InitProducerIdRequest(producer_id=producer_id, producer_epoch=epoch)
        answer = client.call("InitProducerId", request)
        assert not answer.HasField("error")
        return answer.producer_id, answer.producer_epoch

    first = ask(-1, -1)
    assert first[1] == 0
    assert ask(*first) == (first[0], 1)
    assert ask(first[0], 32_766) == (first[0], 32_767)
    renewed = ask(first[0], 32_767)
    assert renewed[1] == 0
    assert renewed[0] > first[0]
    assert ask(-1, -1)[0] > renewed[0]


def test_the_append_time_is_in_the_answer(client: RawClient) -> None:
    (tp,) = client.create_topic()
    result = client.producer().produce(tp, values_batch(tp))
    assert result.append_timestamp > 1_600_000_000_000


def test_a_duplicate_is_answered_with_its_first_append_after_a_change_of_the_timestamp_type(client: RawClient) -> None:
    (tp,) = client.create_topic(message_timestamp_type="LogAppendTime")
    producer = client.producer()
    batch = idempotent_batch(tp, client.new_producer_id(), 0)
    first = producer.produce(tp, batch)
    assert first.is_log_append_time
    client.call("AlterTopicConfigs", topics_pb2.AlterTopicConfigsRequest(name="t", set={"message.timestamp.type": "CreateTime"}))
    assert producer.produce(tp, batch) == first


def test_a_half_closed_stream_gets_all_its_answers(client: RawClient) -> None:
    (tp,) = client.create_topic()
    stream: RawProducer = client.producer()
    for _ in range(20):
        stream.post([(tp, values_batch(tp))])
    stream.half_close()
    assert [stream.answer().results[0].base_offset for _ in range(20)] == list(range(20))
    assert stream.status()[0].name == "OK"
