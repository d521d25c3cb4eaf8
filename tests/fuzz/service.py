"""Hostile requests to the methods of a daemon in this process: raw bytes enter where gRPC would deliver them, so that a million
take minutes. Every record of the honest partition is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa

from brokerd.ids import TopicIdPartition
from brokerd.offline.doctor import check_data_dir
from brokerd.offline.partition_check import Severity
from brokerd.record.batch import walk_batches
from brokerd.record.header import crc_seed
from brokerd.wire.methods import UNARY
from brokerd.wire.records import join_records, split_records
from brokerd.wire.v1 import error_pb2, fetch_pb2, produce_pb2, topics_pb2
from tests.fuzz.inputs import odd_header, rng_of, spoilt_batch
from tests.fuzz.legal import why_illegal
from tests.fuzz.report import FuzzError, Report, file_count, thread_count
from tests.fuzz.requests import Requests, unary_bytes
from tests.support.call_context import Context
from tests.support.child import resident_bytes
from tests.support.daemon import RunningDaemon, running_daemon
from tests.support.hostile_records import good_batches, mutate
from tests.support.records import HEADER_BYTES, key_values, new_batch
from tests.support.victim import FAULTS_OF_THE_CLIENT, files_outside

SETTINGS: dict[str, Any] = {
    "max_partitions": 200,
    "max_topics": 60,
    "max_partitions_per_topic": 20,
    "max_producer_ids_per_partition": 1_000,
    "max_producer_instances": 30_000,
    "fetch_max_wait_ms": 5,
    "log_segment_bytes": 1_048_576,
    "log_retention_bytes": 4_194_304,
    "log_retention_check_interval_ms": 1_000,
}
GROWTH_MAX_BYTES = 150 << 20
THREADS_MORE = 64  # pools grow with the machine's cores, and not at once
_AT_ONCE = 32
_TIDY_INTERVAL = 4_000
BATCHES_PER_STREAM = 5
_GROUP_TIMEOUT_S = 300.0
_PRODUCER_ID_AT = 40
_ANSWERED = grpc.StatusCode.OK


class Alarms(logging.Handler):
    """Collects log records that a healthy daemon does not emit."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See logging."""
        self.messages.append(self.format(record))


class Target:
    """One daemon and its honest partition, used inside the daemon's event loop."""

    def __init__(self, running: RunningDaemon, seed: int, report: Report) -> None:
        service: Any = running.daemon._service
        self._methods: dict[str, Any] = service.method_handlers()
        self.seed = seed
        self.report = report
        self.running = running
        self.good = good_batches()
        self.good_bytes = [data.to_pybytes() for data in self.good]
        self.requests = Requests()
        self._acked: dict[int, bytes] = {}  # acknowledged batches of the honest partition, by base offset
        self._honest_end = 0
        self._honest = TopicIdPartition(bytes(16), 0)

    async def set_up(self) -> None:
        """Creates two topics: one whose records are checked, and one for all other requests."""
        for name in ("honest", "prey"):
            topic = {"name": name, "partitions": 2, "configs": {"retention.bytes": "-1"} if name == "honest" else {}}
            request = topics_pb2.CreateTopicsRequest(topics=[topic])
            context, data = await self._unary("CreateTopics", request.SerializeToString())
            assert context.code is _ANSWERED
            result = topics_pb2.CreateTopicsResponse.FromString(data).results[0]
            if name == "honest":
                self._honest = TopicIdPartition(result.topic_id, 0)
            else:
                self.requests.prey_id = result.topic_id

    async def unary(self, kind: str, number: int) -> None:
        """A unary call with hostile fields or bytes."""
        name, data = unary_bytes(self.requests, kind, rng_of(self.seed, kind, number), number)
        context, answer = await self._unary(name, data)
        if context.code is _ANSWERED:
            UNARY[name].response.FromString(answer)
        self._judge(kind, number, context)

    async def produce(self, kind: str, number: int) -> None:
        """A produce stream with hostile fields or bytes, to the prey."""
        context = await self._stream("Produce", self.requests.produce(kind, rng_of(self.seed, kind, number), number))
        self._judge(kind, number, context)

    async def fetch(self, kind: str, number: int) -> None:
        """A fetch stream with hostile fields or bytes."""
        context = await self._stream("Fetch", self.requests.fetch(kind, rng_of(self.seed, kind, number), number))
        self._judge(kind, number, context)

    async def produce_batches(self, kind: str, number: int) -> None:
        """A valid request with hostile batches, to the honest partition. Each acknowledgement is checked and recorded."""
        rng = rng_of(self.seed, kind, number)
        tp = self._honest
        batches = [self._hostile_batch(rng, tp) for _ in range(BATCHES_PER_STREAM)]
        head = self.requests.produce_head(tp, kind, number)
        messages = []
        for batch in batches:
            messages.append(join_records(head, [[batch]]))
            head.ClearField("hello")
        context = await self._stream("Produce", messages)
        if context.code is not _ANSWERED or len(context.written) != len(batches):
            raise FuzzError(f"{kind}:{number}: {len(context.written)} answers to {len(batches)} requests, {context.details}")
        for data, answer in zip(batches, context.written, strict=True):
            response = produce_pb2.ProduceResponse.FromString(answer)
            result = response.results[0]
            if not result.HasField("error"):
                illegal = why_illegal(data, *tp)
                if illegal is not None:
                    raise FuzzError(f"{kind}:{number}: a batch was acknowledged in spite of its {illegal}")
                self._acknowledged(f"{kind}:{number}", result.base_offset, data)
            elif result.error.code == error_pb2.ERROR_CODE_UNKNOWN_SERVER_ERROR:
                raise FuzzError(f"{kind}:{number}: {result.error.message}")
            outcome = error_pb2.ErrorCode.Name(result.error.code).removeprefix("ERROR_CODE_")
            self.report.count(kind, "acknowledged" if outcome == "NONE" else outcome)

    def _acknowledged(self, what: str, offset: int, data: bytes) -> None:
        if offset not in self._acked and offset >= self._honest_end:
            self._acked[offset] = data
        elif struct.unpack_from("<q", data, _PRODUCER_ID_AT)[0] < 0:  # a retry has the offset of the first append
            raise FuzzError(f"{what}: offset {offset} was given twice")

    def _hostile_batch(self, rng: random.Random, tp: TopicIdPartition) -> bytes:
        match rng.randrange(10):
            case 0 | 1 | 2:
                return bytes(mutate(rng, rng.choice(self.good), tp).to_pybytes())
            case 3 | 4 | 5:
                return bytes(odd_header(rng, rng.choice(self.good), tp).to_pybytes())
            case 6:
                numbers: dict[str, Any] = {
                    "producer_id": rng.randrange(3_000),
                    "producer_epoch": rng.choice((0, 0, 0, 1)),
                    "base_sequence": rng.choice((0, 0, 0, 1, 2, 2**31 - 1)),
                }
                return bytes(new_batch(key_values([b"honest"]), tp=tp, **numbers).to_pybytes())
            case _:
                mine = new_batch(key_values([b"v" * rng.randrange(50)]), tp=tp).to_pybytes()
                return spoilt_batch(rng, [mine, *self.good_bytes])

    async def tidy(self) -> None:
        """Compares the honest partition with the acknowledged batches, then deletes its records and the created topics."""
        await self._check_honest()
        request = topics_pb2.DescribeTopicsRequest().SerializeToString()
        _, data = await self._unary("DescribeTopics", request)
        names = [topic.name for topic in topics_pb2.DescribeTopicsResponse.FromString(data).topics if topic.name != "honest"]
        if len(names) > 30 or "prey" not in names:
            await self._unary("DeleteTopics", topics_pb2.DeleteTopicsRequest(names=names).SerializeToString())
            request = topics_pb2.CreateTopicsRequest(topics=[{"name": "prey", "partitions": 2}]).SerializeToString()
            _, data = await self._unary("CreateTopics", request)
            self.requests.prey_id = topics_pb2.CreateTopicsResponse.FromString(data).results[0].topic_id

    async def _check_honest(self) -> None:
        tp = self._honest
        seed = crc_seed(tp)
        offset = self._honest_end
        while True:
            asked = fetch_pb2.PartitionFetch(
                topic_id=tp.topic_id, fetch_offset=offset, current_leader_epoch=1, partition_max_bytes=2**24
            )
            head = fetch_pb2.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=2**24, partitions=[asked])
            context = await self._stream("Fetch", [head.SerializeToString()])
            response, chunks = split_records(fetch_pb2.FetchResponse, context.written[0])
            if response.results[0].HasField("error"):
                raise FuzzError(f"the honest partition cannot be read: {response.results[0].error}")
            for chunk in chunks:
                for batch in walk_batches(chunk, seed):
                    self._check_stored(batch.header.base_offset, batch.data)
                    offset = batch.header.next_offset
            if not chunks:
                break
        if self._acked:
            raise FuzzError(f"acknowledged and gone: the batches at {sorted(self._acked)[:10]}")
        self._honest_end = offset
        request = topics_pb2.DeleteRecordsRequest(partitions=[{"topic_id": tp.topic_id, "before_offset": offset}])
        await self._unary("DeleteRecords", request.SerializeToString())

    def _check_stored(self, offset: int, data: pa.Buffer) -> None:
        sent = self._acked.pop(offset, None)
        if sent is None:
            raise FuzzError(f"the honest partition has a batch at {offset} that was not acknowledged")
        if data.to_pybytes()[HEADER_BYTES:] != sent[HEADER_BYTES:]:
            raise FuzzError(f"the batch at {offset} is not what was sent")

    async def _unary(self, name: str, data: bytes) -> tuple[Context, bytes]:
        context = Context([data])
        answer = b""
        with contextlib.suppress(grpc.aio.AbortError):
            answer = await self._methods[name].stream_unary(None, context)
        context.end()
        return context, answer

    async def _stream(self, name: str, messages: list[bytes]) -> Context:
        context = Context(messages)
        with contextlib.suppress(grpc.aio.AbortError):
            await self._methods[name].stream_stream(None, context)
        return context

    def _judge(self, kind: str, number: int, context: Context) -> None:
        if context.code is not _ANSWERED and context.code not in FAULTS_OF_THE_CLIENT:
            raise FuzzError(f"{kind}:{number}: {context.code} {context.details}")
        self.report.count(kind, context.code.name)


def run(counts: dict[str, int], seed: int, report: Report, home: Path, *, first: int = 0) -> None:
    """Sends `counts[kind]` inputs of each kind to one daemon below `home`. Raises FuzzError."""
    (home / "level").mkdir()
    outside = files_outside(home)
    alarms = Alarms()
    logging.getLogger().addHandler(alarms)
    try:
        with running_daemon(home / "level" / "data", **SETTINGS) as running:
            trouble: list[str] = []
            running.loop.call_soon_threadsafe(
                running.loop.set_exception_handler,
                lambda _, context: trouble.append(str(context.get("exception") or context)),
            )
            running.run(_attack(Target(running, seed, report), counts, first, alarms, trouble), timeout_s=86_400)
    finally:
        logging.getLogger().removeHandler(alarms)
    if files_outside(home) != outside:
        raise FuzzError(f"files outside the data directory: {files_outside(home)}")
    for finding in check_data_dir(str(home / "level" / "data")):
        if finding.severity is not Severity.NOTE:
            raise FuzzError(f"brokerd doctor: {finding}")


async def _attack(target: Target, counts: dict[str, int], first: int, alarms: Alarms, trouble: list[str]) -> None:
    await target.set_up()
    send: dict[str, Callable[[str, int], Awaitable[None]]] = {
        "unary.edges": target.unary,
        "unary.fields": target.unary,
        "unary.bytes": target.unary,
        "produce.edges": target.produce,
        "produce.fields": target.produce,
        "produce.bytes": target.produce,
        "produce.batches": target.produce_batches,
        "fetch.edges": target.fetch,
        "fetch.fields": target.fetch,
        "fetch.bytes": target.fetch,
    }
    order = _mixed(counts, first, target.seed)
    warm: tuple[int, int, int, int] | None = None
    for at in range(0, len(order), _AT_ONCE):
        group = order[at : at + _AT_ONCE]
        target.report.begin(*group[0])
        async with asyncio.timeout(_GROUP_TIMEOUT_S):
            results = await asyncio.gather(*[send[kind](kind, number) for kind, number in group], return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures or alarms.messages or trouble:
            told = "\n".join([*alarms.messages, *trouble])[:4_000]
            raise FuzzError(f"among {group}: {[*failures, ''][0]}\n{told}") from ([*failures, None][0])
        if at % _TIDY_INTERVAL < _AT_ONCE:
            await target.tidy()
        if warm is None and at >= len(order) // 5:
            warm = _size()
    await target.tidy()
    assert warm is not None
    _check_growth(target.report, warm, _size())


def _mixed(counts: dict[str, int], first: int, seed: int) -> list[tuple[str, int]]:
    """Kinds in random order, the numbers of each ascending."""
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    random.Random(seed).shuffle(kinds)
    numbers = {kind: itertools.count(first) for kind in counts}
    return [(kind, next(numbers[kind])) for kind in kinds]


def _size() -> tuple[int, int, int, int]:
    return resident_bytes(), file_count(), thread_count(), len(asyncio.all_tasks())


def _check_growth(report: Report, warm: tuple[int, int, int, int], last: tuple[int, int, int, int]) -> None:
    names = ("growth, MB", "files", "threads", "tasks")
    for name, before, after in zip(names, warm, last, strict=True):
        report.figures[f"service: {name}"] = round((after - before) / 1e6, 1) if name.endswith("MB") else after
    if last[0] - warm[0] > GROWTH_MAX_BYTES:
        raise FuzzError(f"the daemon grew from {warm[0]} to {last[0]} bytes")
    for name, before, after, most in zip(names[1:], warm[1:], last[1:], (100, THREADS_MORE, 20), strict=True):
        if after > before + most:
            raise FuzzError(f"{name}: {before} became {after}")
