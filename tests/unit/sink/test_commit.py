"""The driver's commit, without a broker: for how long it is asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from brokerd.producer.core.membership import Totals, TransactionEnd
from brokerd.sink import commit
from brokerd.sink.commit import JOB_COMMIT_TIMEOUT_MAX_MS, TransactionPart, commit_parts
from brokerd.sink.options import parse_sink_options
from brokerd.sink.transaction_ids import TransactionIds

HOUR_MS = 3_600_000


class Asked:
    """A client that notes for how long it is to ask."""

    def __init__(self) -> None:
        self.timeouts_ms: list[int | None] = []
        self.one_writes: list[bool] = []

    def end_transaction(self, end: TransactionEnd, *, timeout_ms: int | None = None) -> int:
        self.timeouts_ms.append(timeout_ms)
        self.one_writes.append(end.is_one_write)
        return 0


@pytest.mark.parametrize(
    ("is_one_write", "configured_ms", "expected_ms"),
    [(True, HOUR_MS, JOB_COMMIT_TIMEOUT_MAX_MS), (True, 1_000, 1_000), (False, HOUR_MS, HOUR_MS)],
)
def test_a_commit_is_asked_for_no_longer_than_its_id_is_remembered(
    monkeypatch: pytest.MonkeyPatch, is_one_write: bool, configured_ms: int, expected_ms: int
) -> None:
    asked = Asked()

    @contextlib.contextmanager
    def lease(_config: object) -> Iterator[Asked]:
        yield asked

    monkeypatch.setattr(commit, "lease_client", lease)
    options = parse_sink_options({"bootstrap.servers": "127.0.0.1:1", "topic": "t", "default.api.timeout.ms": str(configured_ms)})
    ids = TransactionIds("job-of-a-query", 0, "e", "", "me", is_one_write)
    commit_parts(options, [TransactionPart(ids, Totals(), None)])
    assert asked.timeouts_ms == [expected_ms]
    assert asked.one_writes == [is_one_write], "the broker is told"
