"""The driver's commit, without a broker: for how long it is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from brokerd.producer.core.membership import Totals
from brokerd.sink import commit
from brokerd.sink.commit import JOB_COMMIT_TIMEOUT_MAX_MS, commit_parts
from brokerd.sink.messages import TransactionPart
from brokerd.sink.options import parse_sink_options
from brokerd.sink.transaction_ids import TransactionIds

HOUR_MS = 3_600_000


class Asked:
    """A client that notes for how long it is to ask."""

    def __init__(self) -> None:
        self.timeouts_ms: list[int | None] = []

    def end_transaction(self, _end: object, *, timeout_ms: int | None = None) -> int:
        self.timeouts_ms.append(timeout_ms)
        return 0


@pytest.mark.parametrize(
    ("transactional_id", "configured_ms", "expected_ms"),
    [
        ("job-00000000-0000-0000-0000-000000000001", HOUR_MS, JOB_COMMIT_TIMEOUT_MAX_MS),
        ("job-00000000-0000-0000-0000-000000000001", 1_000, 1_000),
        ("spark-q", HOUR_MS, HOUR_MS),
    ],
)
def test_a_commit_is_asked_for_no_longer_than_its_id_is_remembered(
    monkeypatch: pytest.MonkeyPatch, transactional_id: str, configured_ms: int, expected_ms: int
) -> None:
    asked = Asked()

    @contextlib.contextmanager
    def lease(_config: object) -> Iterator[Asked]:
        yield asked

    monkeypatch.setattr(commit, "lease_client", lease)
    options = parse_sink_options({"bootstrap.servers": "127.0.0.1:1", "topic": "t", "default.api.timeout.ms": str(configured_ms)})
    commit_parts(options, [TransactionPart(TransactionIds(transactional_id, 0, "e", "", "me"), Totals(), None)])
    assert asked.timeouts_ms == [expected_ms]
