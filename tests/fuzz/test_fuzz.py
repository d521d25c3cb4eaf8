"""A short fuzz run, and proof that it finds faults: each check is shown something bad.

Goal: no input of an unauthenticated client harms the daemon. Method: tests/fuzz/run.py with some thousand inputs (`make fuzz` has a
million); then the same with a fault planted in the broker, which must be found.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from brokerd.errors import NotReadyError
from brokerd.partition.partition import Partition
from brokerd.record.batch import RecordBatch
from brokerd.record.header import decode_header
from brokerd.server import service as server_service
from brokerd.server.handlers import produce
from brokerd.wire.methods import UNARY
from brokerd.wire.v1 import topics_pb2
from tests.fuzz import batches, run, service
from tests.fuzz.inputs import boundary_messages, http2_request, rng_of, spoilt_batch
from tests.fuzz.legal import why_illegal
from tests.fuzz.report import FuzzError, Report
from tests.fuzz.requests import unary_edges
from tests.support.records import HEADER_BYTES, SAMPLE, TP, new_batch
from tests.support.scale import TEST_SCALE

INPUTS = 3_000 * TEST_SCALE


def test_a_short_run_finds_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    code = run.main(["--inputs", str(INPUTS), "--seed", "1"])
    told = capfd.readouterr()
    assert code == 0, told.err[-4_000:]
    assert "nothing found" in told.out
    for shares in run.SHARES.values():
        for kind in shares:
            assert kind in told.out


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return Report(tmp_path / "progress")


def unchecked(data: pa.Buffer, _seed: int, **_limits: int) -> RecordBatch:
    """A broker without the check of batches."""
    return RecordBatch(decode_header(data.slice(0, min(96, data.size)).to_pybytes()), data)


def test_a_broker_that_does_not_check_batches_is_found(tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "check_produced", unchecked)
    with pytest.raises(FuzzError):
        service.run({"produce.batches": 100}, 1, report, tmp_path)
    monkeypatch.setattr(batches, "check_produced", unchecked)
    with pytest.raises(FuzzError):
        batches.run({"batch.spoilt": 100}, 1, report)
    with pytest.raises(FuzzError, match="in spite of"):
        batches.run({"batch.header": 100}, 1, report)


def test_an_acknowledged_batch_that_is_not_there_is_found(tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    append = Partition.append

    def forgetful(self: Partition, batch: RecordBatch, **more: Any) -> Any:
        payload = bytearray(batch.data.to_pybytes())
        payload[HEADER_BYTES] ^= 1
        return append(self, RecordBatch(batch.header, pa.py_buffer(bytes(payload))), **more)

    monkeypatch.setattr(Partition, "append", forgetful)
    with pytest.raises(FuzzError, match="not what was sent"):
        service.run({"produce.batches": 100}, 1, report, tmp_path)


def test_a_handler_that_fails_is_found(tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    async def careless(_broker: Any, _authorizer: Any, request: Any) -> Any:
        raise IndexError(request.partitions[0])

    monkeypatch.setitem(server_service.METHODS, "ListOffsets", server_service.Method(careless))
    with pytest.raises(FuzzError):
        service.run({"unary.fields": 200}, 1, report, tmp_path)


def test_a_file_outside_the_data_directory_is_found(tmp_path: Path, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    async def escaping(*_: Any) -> Any:
        (tmp_path / "level" / "escape").touch()
        raise NotReadyError("no")

    monkeypatch.setitem(server_service.METHODS, "ListOffsets", server_service.Method(escaping))
    with pytest.raises(FuzzError, match="outside the data directory"):
        service.run({"unary.fields": 200}, 1, report, tmp_path)


ILLEGAL = [
    (0, b"\x88", "mark"),
    (4, b"\2", "mark"),
    (6, b"\1", "leader"),
    (20, b"\1", "leader"),
    (36, b"\1", "header_crc"),
    (100, b"\1", "payload_crc"),
]


@pytest.mark.parametrize(("at", "change", "why"), ILLEGAL)
def test_the_judge_sees_what_is_illegal(at: int, change: bytes, why: str) -> None:
    good = bytearray(new_batch().to_pybytes())
    assert why_illegal(bytes(good), *TP) is None
    assert why_illegal(bytes(good[:-8]), *TP) == "batch_length"
    good[at : at + 1] = change
    assert why in (why_illegal(bytes(good), *TP) or "")


FIELDS = {
    "last_offset_delta": "counts",
    "record_count": "counts",
    "producer_id": "producer id, sequence and epoch",
    "base_timestamp": "timestamps or schema",
    "attributes": "attributes",
}


@pytest.mark.parametrize("name", FIELDS)
def test_the_judge_sees_illegal_fields_under_right_crcs(name: str) -> None:
    fields: dict[str, Any] = {name: {"attributes": 2, "base_timestamp": -1}.get(name, 7)}
    assert why_illegal(new_batch(SAMPLE, **fields).to_pybytes(), *TP) == FIELDS[name]


def test_the_same_seed_makes_the_same_inputs() -> None:
    good = [new_batch().to_pybytes()]
    first, again, other = (spoilt_batch(rng_of(seed, "k", 5), good) for seed in (1, 1, 2))
    assert first == again != other


def test_edges_reach_every_field_of_every_method() -> None:
    names = {name for name, _ in unary_edges()}
    assert names == {name for name, method in UNARY.items() if method.request.DESCRIPTOR.fields}
    assert len(unary_edges()) > 1_000
    request = topics_pb2.CreateTopicsRequest(topics=[{"name": "a", "partitions": 1}])
    values = {message.topics[0].partitions for message in boundary_messages(request) if message.topics}  # type: ignore[attr-defined]
    assert {0, -1, 2**31 - 1, -(2**31)} <= values


def test_requests_made_by_hand_are_http2() -> None:
    data = http2_request("/x/y", b"message")
    assert data.startswith(b"PRI * HTTP/2.0")
    assert data.endswith(struct.pack(">BI", 0, 7) + b"message")
