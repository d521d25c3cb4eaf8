"""The ids of a task's transaction, from Spark's local properties and the options: the same for all tasks of one write. Also the
timeout of its commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import pytest

from brokerd.errors import ConfigError
from brokerd.producer.core.membership import Totals, TransactionEnd
from brokerd.sink import transaction
from brokerd.sink.options import NO_TRANSACTION_OPTIONS, TransactionOptions, parse_sink_options
from brokerd.sink.transaction import (
    JOB_COMMIT_TIMEOUT_MAX_MS,
    Property,
    TransactionIds,
    TransactionPart,
    batch_ids,
    commit_parts,
    streaming_ids,
)

HOUR_MS = 3_600_000

QUERY = "899cad3f-0000-4000-8000-000000000000"
SESSION = "spark-session-0b2f9c1e-0000-4000-8000-000000000000"
STREAMING = {
    "sql.streaming.queryId": QUERY,
    "streaming.sql.batchId": "7",
    "spark.sql.execution.query.id": "execution-1",
    "spark.sql.execution.root.id": "4",
    "spark.job.tags": f"mine,{SESSION}-execution-root-id-4,{SESSION}",
    "spark.jobGroup.id": "nightly",
}
RUN = f"{SESSION}-execution-root-id-4"
PLAIN = {"spark.sql.execution.query.id": "execution-2"}


def streaming_of(get: Property, options: TransactionOptions = NO_TRANSACTION_OPTIONS) -> TransactionIds:
    return streaming_ids(options, get, topic="events")


def ids_of(
    properties: Mapping[str, str], options: TransactionOptions = NO_TRANSACTION_OPTIONS, topic: str | None = "events"
) -> TransactionIds:
    return batch_ids(options, properties.get, topic=topic, job_id="uuid")


def test_stream_is_named_by_its_query_and_its_batch() -> None:
    ids = streaming_of(STREAMING.get)
    assert ids[:4] == (f"spark-{QUERY}-events", 7, "execution-1", "")
    assert ids.owner == f"streaming query {QUERY}, batch 7"
    assert streaming_of(STREAMING.get, TransactionOptions(label="a")).transactional_id == f"spark-{QUERY}-events/a"


def test_owner_is_named_as_the_user_has_named_the_query() -> None:
    named = {**STREAMING, "spark.job.description": f"bill the orders\nid = {QUERY}\nrunId = run-1\nbatch = 7"}
    assert streaming_of(named.get).owner == f"streaming query bill the orders ({QUERY}), batch 7"
    assert ids_of(named).owner == f"streaming query bill the orders ({QUERY}), batch 7, foreachBatch"
    assert streaming_of(named.get)[:4] == streaming_of(STREAMING.get)[:4]


@pytest.mark.parametrize("description", [f"\nid = {QUERY}\nbatch = 7", "a job group of the user's own", "", None])
def test_query_without_a_name_is_named_by_its_id(description: str | None) -> None:
    get = {**STREAMING, "spark.job.description": description}.get
    assert streaming_of(get).owner == f"streaming query {QUERY}, batch 7"


def test_owner_has_room_for_any_name_of_a_query() -> None:
    get = {**STREAMING, "spark.job.description": f"{'n' * 999}\x00\nid = {QUERY}"}.get
    assert len(streaming_of(get).owner) < 249


@pytest.mark.parametrize("missing", ["sql.streaming.queryId", "streaming.sql.batchId", "spark.sql.execution.query.id"])
def test_stream_without_its_ids_is_refused(missing: str) -> None:
    properties = {name: value for name, value in STREAMING.items() if name != missing}
    with pytest.raises(ConfigError, match="did not tell the task which micro-batch"):
        streaming_of(properties.get)


def test_write_inside_foreach_batch_is_named_by_query_batch_and_topic_or_label() -> None:
    assert ids_of(STREAMING)[:4] == (f"spark-{QUERY}-events", 7, "uuid", RUN)
    assert ids_of(STREAMING, TransactionOptions(label="second")).transactional_id == f"spark-{QUERY}-events/second"
    assert ids_of(STREAMING, topic=None).transactional_id == f"spark-{QUERY}-*"


def test_write_with_application_and_version_is_named_by_them() -> None:
    options = TransactionOptions(app_id="loader", version=12)
    assert ids_of(PLAIN, options)[:4] == ("app-loader/events", 12, "uuid", "")
    assert ids_of(STREAMING, options)[:4] == ("app-loader/events", 12, "uuid", RUN)  # inside foreachBatch too, as with Delta


def test_plain_write_is_a_job_of_its_own() -> None:
    assert ids_of(PLAIN)[:4] == ("job-uuid", 0, "uuid", "")
    others = (ids_of(STREAMING), ids_of(PLAIN, TransactionOptions("a", 0)))
    assert [ids.is_one_write for ids in (ids_of(PLAIN), *others)] == [True, False, False]


def test_long_names_end_in_a_hash_and_stay_apart() -> None:
    first, second = (ids_of(STREAMING, topic="t" * 248 + end).transactional_id for end in "ab")
    assert len(first) == len(second) == 249
    assert first != second
    assert first.startswith(f"spark-{QUERY}-ttt")


def test_properties_of_the_users_own_are_no_identity() -> None:
    own = {"spark.jobGroup.id": "x", "spark.sql.execution.query.id": "x", "spark.app.id": "x", "spark.app.startTime": "5"}
    for options in (NO_TRANSACTION_OPTIONS, TransactionOptions(app_id="etl", version=7)):
        assert ids_of({**STREAMING, **own}, options) == ids_of(STREAMING, options)
        assert ids_of({**PLAIN, **own}, options) == ids_of(PLAIN, options)


@pytest.mark.parametrize("own", ["mine", f"{SESSION}-thread-1-tag-mine", "spark-session-mine"])
def test_a_tag_of_the_users_own_is_no_run(own: str) -> None:
    """Even if it ends like Spark's tag. Spark does not define the order of tags."""
    tagged = {**STREAMING, "spark.job.tags": f"{own}-execution-root-id-4,{STREAMING['spark.job.tags']}"}
    assert ids_of(tagged) == ids_of(STREAMING)


@pytest.mark.parametrize(
    "changed",
    [
        {"spark.job.tags": ""},
        {"spark.job.tags": f"mine,{SESSION}"},
        {"spark.job.tags": f"{SESSION}-execution-root-id-44,{SESSION}-execution-root-id-3"},
        {"spark.job.tags": f"mine-execution-root-id-4,{SESSION}-tag-mine-execution-root-id-4"},
        {"spark.sql.execution.root.id": "5"},
    ],
)
def test_write_inside_foreach_batch_without_its_run_is_refused(changed: dict[str, str]) -> None:
    for options in (NO_TRANSACTION_OPTIONS, TransactionOptions(app_id="etl", version=7)):
        with pytest.raises(ConfigError, match=r"its execution of the micro-batch, .* sc\.clearJobTags\(\) inside foreachBatch"):
            ids_of({**STREAMING, **changed}, options)


def test_applications_and_topics_that_join_to_one_name_stay_apart() -> None:
    first = ids_of(PLAIN, TransactionOptions(app_id="etl", version=1), topic="orders-eu")
    second = ids_of(PLAIN, TransactionOptions(app_id="etl-orders", version=1), topic="eu")
    assert first.transactional_id != second.transactional_id


class Asked:
    """A client that records how long it may retry each commit, and whether the commit is of one write."""

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

    monkeypatch.setattr(transaction, "lease_client", lease)
    options = parse_sink_options({"bootstrap.servers": "127.0.0.1:1", "topic": "t", "default.api.timeout.ms": str(configured_ms)})
    ids = TransactionIds("job-of-a-query", 0, "e", "", "me", is_one_write)
    commit_parts(options, [TransactionPart(ids, Totals(), None)])
    assert asked.timeouts_ms == [expected_ms]
    assert asked.one_writes == [is_one_write], "the broker is told"
