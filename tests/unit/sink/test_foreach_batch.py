"""The options of append_to, and its choice of queries. tests/spark/test_append_to.py tests its writes, with Spark."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pyarrow as pa
import pytest

from brokerd.errors import ConfigError
from brokerd.sink.foreach_batch import ONE_TASK_MAX_MS, PAUSE_MAX, VERY_FEW_BYTES_MAX, VERY_FEW_ROWS_MAX, AppendTo, Queries, Query
from brokerd.spark import append_to

SERVERS = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("topic", "options", "label", "sentence"),
    [
        ("events", {}, None, r"bootstrap\.servers"),
        ("a b", SERVERS, None, "topic 'a b' is not a topic's name"),
        ("events", {**SERVERS, "Topic": "others"}, None, "option topic is given twice"),
        ("events", {**SERVERS, "txnLabel": "a"}, "b", "option txnLabel is given twice"),
        ("events", {**SERVERS, "txnVersion": 3}, None, "takes the number of the micro-batch for option txnVersion"),
        ("events", {**SERVERS, "acks": "2"}, None, "acks"),
        ("events", {**SERVERS, "nope": "2"}, None, "nope"),
        ("events", "127.0.0.1:9192", None, "settings must be a mapping by name, such as .*bootstrap.servers.*, not of type str"),
        ("events", None, None, "not of type NoneType"),
        (SERVERS, "events", None, "not of type str"),
        ("events", {5: "x"}, None, "the name of a setting must be text, not 5"),
        ("events", {**SERVERS, "txnAppId": None}, None, "option txnAppId is None: leave it out"),
    ],
)
def test_wrong_options_are_refused_when_the_function_is_made(topic: Any, options: Any, label: str | None, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        append_to(topic, options, label=label)


def test_the_function_can_be_pickled() -> None:
    function = append_to("events", {**SERVERS, "txnAppId": "copy", "linger.ms": 5}, label="a")
    assert vars(pickle.loads(pickle.dumps(function))) == vars(function)


def rows_of(count: int, size: int = 1) -> list[pa.RecordBatch]:
    return [pa.record_batch({"value": pa.array([b"v" * size] * part)}) for part in (count // 2, count - count // 2)]


def test_a_long_query_gets_tasks_and_keeps_them_until_it_is_short() -> None:
    queries, chosen = Queries(), []
    for took_ms, rows in (
        (ONE_TASK_MAX_MS // 2 + 1, rows_of(1)),  # fast because of its tasks, so it keeps them
        (ONE_TASK_MAX_MS // 2, None),
        (ONE_TASK_MAX_MS, rows_of(1)),
        (ONE_TASK_MAX_MS + 1, rows_of(1)),
    ):
        queries.ended(took_ms, rows)
        chosen.append(queries.next)
    assert chosen == [Query.TASKS, Query.ONE_TASK, Query.VERY_FEW, Query.TASKS]


def test_one_task_is_tried_less_and_less_often_where_many_are_faster() -> None:
    queries, tried = Queries(), []
    for number in range(10_000):
        if queries.next is not Query.TASKS:
            tried.append(number)
        queries.ended(1 if queries.next is Query.TASKS else 1_000, rows_of(1))
    gaps = [later - earlier - 1 for earlier, later in itertools.pairwise(tried)]
    assert gaps[:11] == [2, 4, 8, 16, 32, 64, 128, 256, 512, PAUSE_MAX, PAUSE_MAX]
    for _ in range(2 * PAUSE_MAX):
        queries.ended(1, rows_of(1))
    assert queries.pause == 1, "it is fast again"
    queries.ended(1_000, rows_of(1))
    assert queries.left == 2, "a slow one now and then costs two micro-batches"


def test_a_query_that_failed_is_not_repeated_unchecked() -> None:
    queries = Queries(Query.VERY_FEW)
    queries.failed()
    assert queries.next is Query.TASKS


def test_sizes_are_always_checked_where_a_record_may_be_larger_than_by_default() -> None:
    for size_bytes, expected in ((8_388_608, Query.VERY_FEW), (8_388_609, Query.ONE_TASK)):
        function = append_to("events", {**SERVERS, "max.request.size": size_bytes})
        assert isinstance(function, AppendTo)
        function.queries.ended(1, rows_of(1))
        assert function.queries.next is expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], Query.VERY_FEW),
        (rows_of(VERY_FEW_ROWS_MAX), Query.VERY_FEW),
        (rows_of(VERY_FEW_ROWS_MAX + 1), Query.ONE_TASK),
        (rows_of(20, VERY_FEW_BYTES_MAX // 20 - 100), Query.VERY_FEW),
        (rows_of(20, VERY_FEW_BYTES_MAX // 20), Query.ONE_TASK),
        (None, Query.ONE_TASK),
    ],
)
@pytest.mark.parametrize("query", Query)
def test_rows_are_taken_unchecked_only_after_very_few_small_ones(
    query: Query, rows: list[pa.RecordBatch] | None, expected: Query
) -> None:
    queries = Queries(query)
    queries.ended(1, rows)
    assert queries.next is expected
