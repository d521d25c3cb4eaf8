"""A daemon under attack, in its own process: raw calls to it, and the checks that must hold after any abuse. The tests choose the
abuse."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from brokerd.ids import TopicIdPartition
from brokerd.wire.channel import CHANNEL_ARGUMENTS
from brokerd.wire.methods import SERVICE
from brokerd.wire.v1 import topics_pb2
from tests.support.daemon import DaemonProcess
from tests.support.raw_client import RawFetcher, RawProducer, values_batch
from tests.support.wait import DEADLINE_S

SETTINGS = {"max.partitions": 200, "max.topics": 60, "max.partitions.per.topic": 20, "fetch.max.wait.ms": 50}
CALL_TIMEOUT_S = DEADLINE_S
# Status codes for a client's own fault, a limit, or an unknown method. INTERNAL and UNKNOWN are the broker's faults.
FAULTS_OF_THE_CLIENT = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNAVAILABLE,
}


class Victim:
    """The daemon under attack, with raw calls to it."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon
        self.channel: Any = grpc.insecure_channel(daemon.address, options=CHANNEL_ARGUMENTS)
        created = topics_pb2.CreateTopicsResponse.FromString(
            self.unary(
                "CreateTopics", topics_pb2.CreateTopicsRequest(topics=[{"name": "honest", "partitions": 2}]).SerializeToString()
            )
        )
        self.honest = TopicIdPartition(created.results[0].topic_id, 1)
        self.written = 0

    def unary(self, name: str, data: bytes) -> bytes:
        """Calls a method with raw bytes."""
        answer: bytes = self.channel.unary_unary(f"/{SERVICE}/{name}")(data, timeout=CALL_TIMEOUT_S)
        return answer

    def stream(self, path: str, messages: list[bytes]) -> list[bytes]:
        """The responses of a stream to these messages. Raises grpc.RpcError."""
        return list(self.channel.stream_stream(path)(iter(messages), timeout=CALL_TIMEOUT_S))

    def close(self) -> None:
        """Closes the connection."""
        self.channel.close()

    def works(self) -> None:
        """Asserts that an honest client is served: it writes one record and reads all that it has written."""
        producer, fetcher = RawProducer(self.channel, lambda _: 1), RawFetcher(self.channel, lambda _: 1)
        result = producer.produce(self.honest, values_batch(self.honest))
        assert not result.HasField("error"), result
        assert result.base_offset == self.written
        self.written += 1
        head, (batches,) = fetcher.fetch({self.honest: 0}, max_wait_ms=1_000, max_bytes=2**20, partition_max_bytes=2**20)
        assert head.results[0].high_watermark == self.written
        assert batches
        for stream in (producer, fetcher):
            stream.half_close()
            assert stream.status()[0] is grpc.StatusCode.OK

    def log_text(self) -> str:
        """The daemon's log so far."""
        return self.daemon.stderr_path.read_text()


def files_outside(home: Path) -> list[str]:
    """All files below `home` outside the data directory."""
    found = []
    for folder, _, names in os.walk(home):
        if not Path(folder).is_relative_to(home / "level" / "data"):
            found += [str(Path(folder) / name) for name in names]
    return sorted(found)


def status_of(victim: Victim, path: str, messages: list[bytes]) -> grpc.StatusCode:
    """The status of a stream, OK if answered. Asserts that an error is the client's fault."""
    return outcome(lambda: victim.stream(path, messages), messages)


def outcome(call: Callable[[], object], sent: object) -> grpc.StatusCode:
    """The status of a call, OK if answered. Asserts that an error is the client's fault."""
    failure = None
    try:
        call()
    except grpc.RpcError as error:
        failure = error
    if failure is None:
        return grpc.StatusCode.OK
    code: grpc.StatusCode = failure.code()
    assert code in FAULTS_OF_THE_CLIENT, f"{code}: {failure.details()} for {sent!r:.400}"
    return code
