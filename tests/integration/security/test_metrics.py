"""The metrics of a running broker: correct numbers after real requests, and only for principals that may see every topic."""

from __future__ import annotations

import contextlib
import http.client
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from brokerd.errors import ConfigError
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1 import metadata_pb2, offsets_pb2, topics_pb2
from tests.support.certificates import Authority
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.files import MemoryFiles
from tests.support.identities import TOKENS, UNKNOWN_TOKEN
from tests.support.logged import messages_of
from tests.support.raw_client import RawClient, idempotent_batch, values_batch
from tests.support.wait import DEADLINE_S, wait_until

Samples = dict[tuple[object, ...], float]


def scrape(
    running: RunningDaemon,
    path: str = "/metrics",
    *,
    method: str = "GET",
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
) -> tuple[int, str]:
    """Status and body."""
    port = running.daemon.metrics_port
    connection = (
        http.client.HTTPSConnection("127.0.0.1", port, timeout=DEADLINE_S, context=tls)
        if tls is not None
        else http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    )
    with contextlib.closing(connection):
        connection.request(method, path, headers={"Authorization": f"Bearer {token}"} if token is not None else {})
        response = connection.getresponse()
        return response.status, response.read().decode()


def samples(text: str) -> Samples:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def all_are_counted(found: Samples) -> bool:
    """True once the responses of six produce requests and two fetches are written."""
    counts = [found["brokerd_request_time_seconds_count", ("phase", "total"), ("request", name)] for name in ("Produce", "Fetch")]
    return counts == [6, 2]


def test_partitions_beyond_the_limit_are_counted_and_not_listed(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), metrics_port=0, metrics_max_partitions=3) as running,
        RawClient(running.address) as client,
    ):
        client.create_topic("gone")
        client.create_topic("many", partitions=4)
        client.call("DeleteTopics", topics_pb2.DeleteTopicsRequest(names=["gone"]))
        found = samples(scrape(running)[1])
    listed = [labels for name, *labels in found if name == "brokerd_log_end_offset"]
    assert listed == [[("partition", str(number)), ("topic", "many")] for number in range(3)]
    assert found["brokerd_partitions_left_out",] == 1
    assert found["brokerd_topic_partition_count", ("topic", "many")] == 4
    assert ("brokerd_topic_messages_in_total", ("topic", "gone")) not in found


def test_groups_show_offset_and_lag_up_to_a_limit(tmp_path: Path) -> None:
    with (
        running_daemon(tmp_path / "data", metrics_port=0, metrics_max_group_partitions=3) as running,
        RawClient(running.address) as client,
    ):
        tps = client.create_topic("events", partitions=2)
        client.producer().produce(tps[0], values_batch(tps[0], 5))
        for group_id, offset in (("a", 2), ("b", 5)):
            offsets = [{"topic_id": tp.topic_id, "partition": tp.partition} for tp in tps]
            request = offsets_pb2.CommitGroupOffsetsRequest(group_id=group_id, offsets=offsets)
            request.offsets[0].offset = offset
            assert not any(one.HasField("error") for one in client.call("CommitGroupOffsets", request).results)
        found = samples(scrape(running)[1])

    def labels(group: str, partition: int) -> list[tuple[str, str]]:
        return [("group", group), ("partition", str(partition)), ("topic", "events")]

    assert [found["brokerd_group_offset", *labels(*one)] for one in (("a", 0), ("a", 1), ("b", 0))] == [2, 0, 5]
    assert [found["brokerd_group_lag", *labels(*one)] for one in (("a", 0), ("a", 1), ("b", 0))] == [3, 0, 0]
    assert ("brokerd_group_offset", *labels("b", 1)) not in found
    assert [found[f"brokerd_group_{name}",] for name in ("count", "offset_count", "partitions_left_out")] == [2, 4, 1]


def test_the_lag_of_a_group_counts_partitions_that_it_has_not_read(tmp_path: Path) -> None:
    with running_daemon(tmp_path / "data", metrics_port=0) as running, RawClient(running.address) as client:
        tps = client.create_topic("events", partitions=2)
        client.producer().produce(tps[1], values_batch(tps[1], 5))
        request = offsets_pb2.CommitGroupOffsetsRequest(group_id="a", offsets=[{"topic_id": tps[0].topic_id, "partition": 0}])
        client.call("CommitGroupOffsets", request)
        found = samples(scrape(running)[1])
    labels = [("group", "a"), ("partition", "1"), ("topic", "events")]
    assert found["brokerd_group_lag", *labels] == 5
    assert ("brokerd_group_offset", *labels) not in found
    assert found["brokerd_group_partitions_left_out",] == 0


def test_numbers_are_those_of_the_requests(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with running_daemon(tmp_path / "data", files=MemoryFiles(), metrics_port=0) as running, RawClient(running.address) as client:
        (tp,) = client.create_topic("events")
        batch = values_batch(tp, 5)
        producer, fetcher = client.producer(), client.fetcher()
        for _ in range(3):
            producer.produce(tp, batch)
        numbered = idempotent_batch(tp, client.new_producer_id(), 0)
        producer.produce(tp, numbered)
        producer.produce(tp, numbered)
        gone = TopicIdPartition(bytes(16), 0)
        producer.produce(gone, values_batch(gone))
        fetcher.fetch({tp: 0})
        fetcher.fetch({tp: 99})
        client.call("Metadata", metadata_pb2.MetadataRequest(all_topics=True))
        # A response is counted after it is written, when the client may already have it.
        wait_until(lambda: all_are_counted(samples(scrape(running)[1])))
        status, text = scrape(running)
        found = samples(text)
        assert scrape(running, "/metrics?x=1", method="HEAD") == (200, "")
        assert scrape(running, "/")[0] == 404
        assert scrape(running, method="POST")[0] == 405
    assert status == 200
    assert found["brokerd_messages_in_total",] == 16, "a duplicate is no record"
    assert found["brokerd_bytes_in_total",] == 3 * batch.size + numbered.size
    assert found["brokerd_bytes_out_total",] > 3 * batch.size
    assert found["brokerd_failed_produce_requests_total", ("error", "UNKNOWN_TOPIC_ID")] == 1
    assert found["brokerd_failed_fetch_requests_total", ("error", "OFFSET_OUT_OF_RANGE")] == 1
    for phase in ("local", "remote", "response_send", "total"):
        assert found["brokerd_request_time_seconds_count", ("phase", phase), ("request", "Produce")] == 6
        assert found["brokerd_request_time_seconds_count", ("phase", phase), ("request", "Fetch")] == 2
    assert found["brokerd_request_time_seconds_count", ("phase", "total"), ("request", "Metadata")] == 3, "two for epochs"
    assert 1 <= found["brokerd_log_flush_time_seconds_count",] <= 5
    size = 3 * batch.size + numbered.size
    assert found["brokerd_topic_size_bytes", ("topic", "events")] == size
    assert found["brokerd_topic_messages_in_total", ("topic", "events")] == 16
    assert found["brokerd_topic_bytes_in_total", ("topic", "events")] == size
    assert found["brokerd_topic_bytes_out_total", ("topic", "events")] == size
    one = (("partition", "0"), ("topic", "events"))
    assert [found[f"brokerd_log_{name}", *one] for name in ("start_offset", "high_watermark", "end_offset", "size_bytes")] == [
        0,
        16,
        16,
        size,
    ]
    assert found["brokerd_partitions_left_out",] == 0
    assert found["brokerd_disk_free_bytes",] > 0 < found["brokerd_disk_used_bytes",]
    assert found["brokerd_partition_count",] == found["brokerd_topic_count",] == 1
    assert found["brokerd_stream_count",] == 2
    assert found["brokerd_dirty_bytes",] == found["brokerd_in_flight_bytes",] == 0
    assert found["brokerd_purgatory_size", ("request", "Fetch")] == 0
    assert found["process_open_fds",] > 0


def test_where_tokens_are_wanted_the_metrics_want_one_that_sees_every_topic(
    tmp_path: Path, auth_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("broker", "127.0.0.1")
    trusting = ssl.create_default_context(cafile=authority.ca_file)
    with running_daemon(
        tmp_path / "data",
        files=MemoryFiles(),
        metrics_port=0,
        auth_file=str(auth_file),
        ssl_certificate_file=issued.certificate_file,
        ssl_key_file=issued.key_file,
    ) as running:
        assert scrape(running, tls=trusting)[0] == 401
        assert scrape(running, tls=trusting, token=UNKNOWN_TOKEN)[0] == 401
        assert scrape(running, tls=trusting, token=TOKENS["reader"])[0] == 403
        status, text = scrape(running, tls=trusting, token=TOKENS["boss"])
        assert status == 200
        assert not any(token in text for token in TOKENS.values())
        with pytest.raises((http.client.HTTPException, OSError)):
            scrape(running, token=TOKENS["boss"])
    refused = [record.getMessage() for record in caplog.records if record.name == "brokerd.audit"]
    assert all(line.startswith("ipv4:127.0.0.1 refused: metrics: ") for line in refused[:2]), refused
    assert refused[2:] == ["reader refused: metrics: principal 'reader' has no right on all topics ('*')"]
    assert not any(token in line for line in refused for token in (*TOKENS.values(), UNKNOWN_TOKEN))


@pytest.mark.parametrize("sent", [b"", b"\x00" * 100, b"GET /metrics", b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 5_000])
def test_what_is_no_request_gets_nothing_and_logs_nothing(tmp_path: Path, sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with running_daemon(tmp_path / "data", files=MemoryFiles(), metrics_port=0) as running:
        connection = socket.create_connection(("127.0.0.1", running.daemon.metrics_port), timeout=DEADLINE_S)
        with connection, contextlib.suppress(ConnectionError):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
        assert scrape(running)[0] == 200
    assert not messages_of(caplog, "asyncio", "brokerd.server")


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        context = running_daemon(tmp_path / "data", files=MemoryFiles(), metrics_port=port)
        with pytest.raises(ConfigError, match=f"cannot listen on metrics.host = 127.0.0.1, metrics.port = {port}"), context:
            pass


def test_whoever_is_silent_in_a_handshake_is_counted_and_ended_for_a_probe(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("broker", "127.0.0.1")
    files: dict[str, Any] = {"ssl_certificate_file": issued.certificate_file, "ssl_key_file": issued.key_file}
    with (
        running_daemon(tmp_path / "data", files=MemoryFiles(), metrics_port=0, **files) as running,
        contextlib.ExitStack() as silent,
    ):
        address = ("127.0.0.1", running.daemon.metrics_port)
        connections = [silent.enter_context(socket.create_connection(address)) for _ in range(70)]
        tls = ssl.create_default_context(cafile=authority.ca_file)
        assert scrape(running, "/health", tls=tls) == (200, "serving\n")
        connections[0].settimeout(DEADLINE_S)
        assert connections[0].recv(1) == b"", "the oldest has made room"
    assert not [record for record in caplog.records if record.name == "asyncio"], "strangers fill no log with tracebacks"
