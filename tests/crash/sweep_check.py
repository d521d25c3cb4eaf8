"""Invariants of a data directory whose broker was killed at any moment. Raises AssertionError with the one that fails.

The recovering broker runs in this process, without a tracer; the doctor checks the directory before and after.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa

from brokerd.errors import DataDirectoryError
from brokerd.offline.doctor import check_data_dir
from brokerd.offline.partition_check import Severity
from brokerd.record.batch import RecordBatch
from brokerd.wire.v1 import error_pb2, metadata_pb2, topics_pb2
from tests.crash.sweep_script import SETTINGS, TOPIC, Expected, PartitionHistory, new_sent
from tests.support.daemon import running_daemon
from tests.support.raw_client import RawClient, RawProducer

_CONNECTS = 3


def check(data_dir: Path, expected: Expected) -> None:
    """Recovers, and checks everything."""
    _check_before(data_dir, expected)
    settings: dict[str, Any] = {name.replace(".", "_"): value for name, value in SETTINGS.items()}
    with running_daemon(data_dir, **settings) as running, connected(running.address) as client:
        _check_topics(client, expected)
        producer = client.producer()
        if TOPIC in expected.topics:
            descriptions = client.describe(TOPIC).partitions
            assert len(descriptions) in expected.partition_counts, f"{len(descriptions)} partitions"
            for history, description in zip(expected.partitions.values(), descriptions, strict=False):
                assert not description.HasField("error"), description.error
                _check_partition(client, history, description)
                if expected.producer_id >= 0:
                    _check_producer(producer, history, expected.producer_id)
        given = client.new_producer_id()
        assert given not in expected.given_ids, f"producer id {given} was given twice"
    findings = check_data_dir(str(data_dir))
    assert not findings, f"after a clean stop the doctor says {findings}"


def connected(address: str) -> RawClient:
    """A client that has been answered once. Retries, since a first connection may time out when many processes share few cores.

    Raises ConnectionError.
    """
    for _ in range(_CONNECTS):
        client = RawClient(address)
        try:
            client.call("GetServerInfo", metadata_pb2.GetServerInfoRequest())
        except grpc.RpcError:
            client.channel.close()
        else:
            return client
    raise ConnectionError(f"the broker does not answer, {_CONNECTS} times")


def _check_before(data_dir: Path, expected: Expected) -> None:
    """The doctor must find nothing lost, even before recovery."""
    try:
        findings = check_data_dir(str(data_dir))
    except DataDirectoryError:
        # Killed before the directory was complete: no request can have been answered.
        assert not os.path.exists(data_dir / "meta"), "the doctor does not know the directory"
        assert not expected.topics
        return
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    assert not errors, f"before the restart the doctor says {errors}"


def _check_topics(client: RawClient, expected: Expected) -> None:
    answer: metadata_pb2.MetadataResponse = client.call("Metadata", metadata_pb2.MetadataRequest(all_topics=True))
    there = {topic.name for topic in answer.topics}
    assert expected.topics <= there, f"created topics are gone: {expected.topics - there}"
    assert there <= expected.topics | expected.asked, f"topics from nowhere: {there - expected.topics - expected.asked}"


def _check_partition(client: RawClient, history: PartitionHistory, description: topics_pb2.PartitionDescription) -> None:
    start, end = description.log_start_offset, description.high_watermark
    assert end == description.log_end_offset
    assert start in history.log_starts, f"the log begins at {start}, not at one of {history.log_starts}"
    history.settle(end)
    found = {batch.header.base_offset: batch for batch in _read(client, history, start, end)}
    wanted = [sent for sent in history.sent if sent.base_offset + 1 > start]
    assert list(found) == [sent.base_offset for sent in wanted], f"{list(found)} are there from {start} to {end}"
    for sent in wanted:
        payload = found[sent.base_offset].payload.to_pybytes()
        assert payload not in history.dropped, f"what was gone is back at {sent.base_offset}"
        assert payload == sent.payload, f"at {sent.base_offset} lies something else"


def _read(client: RawClient, history: PartitionHistory, start: int, end: int) -> list[RecordBatch]:
    batches: list[RecordBatch] = []
    fetcher = client.fetcher()
    offset = start
    while offset < end:
        head, (some,) = fetcher.fetch({history.tp: offset})
        assert not head.results[0].HasField("error"), head.results[0].error
        assert some, f"nothing is there at {offset}, below the high watermark {end}"
        batches += some
        offset = some[-1].header.next_offset
    return batches


def _check_producer(producer: RawProducer, history: PartitionHistory, producer_id: int) -> None:
    """A retry of the last batch is recognised, a gap in sequences is refused, and the next batch is accepted."""
    if history.sent:
        last = history.sent[-1]
        repeated = producer.produce(history.tp, pa.py_buffer(last.data))
        assert not repeated.HasField("error"), f"the last batch again: {repeated.error}"
        assert repeated.base_offset == last.base_offset, f"the last batch again: {repeated.base_offset}, not {last.base_offset}"
    following = new_sent(history, producer_id)
    history.sent.append(following)
    beyond = new_sent(history, producer_id)
    if following.sequence:  # a producer unknown to this partition must begin at sequence 0
        refused = producer.produce(history.tp, pa.py_buffer(beyond.data))
        assert refused.error.code == error_pb2.ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER, f"a gap in the sequence: {refused}"
    taken = producer.produce(history.tp, pa.py_buffer(following.data))
    assert not taken.HasField("error"), f"the next batch: {taken.error}"
    assert taken.base_offset == following.base_offset, f"the next batch: {taken.base_offset}, not {following.base_offset}"
