"""append_to's options. What it writes is tested with Spark: tests/spark/test_append_to.py."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from brokerd.errors import ConfigError
from brokerd.sink.foreach_batch import ONE_TASK_MAX_MS, needs_tasks
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
    ],
)
def test_wrong_options_are_refused_when_the_function_is_made(
    topic: str | None, options: dict[str, Any], label: str | None, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        append_to(topic, options, label=label)


def test_the_function_can_be_pickled() -> None:
    function = append_to("events", {**SERVERS, "txnAppId": "copy", "linger.ms": 5}, label="a")
    assert vars(pickle.loads(pickle.dumps(function))) == vars(function)


def test_a_long_query_gets_tasks_and_keeps_them_until_it_is_short() -> None:
    assert not needs_tasks(ONE_TASK_MAX_MS, had_tasks=False)
    assert needs_tasks(ONE_TASK_MAX_MS + 1, had_tasks=False)
    assert needs_tasks(ONE_TASK_MAX_MS // 2 + 1, had_tasks=True), (
        "with its tasks it is faster, which is no reason to take them away"
    )
    assert not needs_tasks(ONE_TASK_MAX_MS // 2, had_tasks=True)
