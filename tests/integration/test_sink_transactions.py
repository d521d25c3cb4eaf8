"""The sink's tasks and its driver's decision against a real broker, without Spark: one transaction per write, decided once."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from brokerd.client.blocking import BlockingClient
from brokerd.config.client import ClientConfig
from brokerd.errors import ProducerFencedError, ReplayMismatchError, TxnAbortedError, TxnConflictError
from brokerd.sink.options import SinkOptions, parse_sink_options
from brokerd.sink.task import write_as_member
from brokerd.sink.transaction import TransactionIds, TransactionPart, abort_parts, commit_parts
from tests.support.daemon import RunningDaemon
from tests.support.reading import committed_rows


@pytest.fixture
def topics(daemon: RunningDaemon, request: pytest.FixtureRequest) -> tuple[str, str]:
    """Two new topics of two partitions."""
    names = (
        f"{request.node.name[:200]}-a".replace("[", "-").replace("]", ""),
        f"{request.node.name[:200]}-b".replace("[", "-").replace("]", ""),
    )
    with BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as client:
        for name in names:
            client.create_topic(name, 2)
    return names


def options_for(daemon: RunningDaemon, topic: str | None, **options: Any) -> SinkOptions:
    given = {"bootstrap.servers": daemon.address, "linger.ms": "0", **options}
    return parse_sink_options(given if topic is None else {**given, "topic": topic})


def ids(topic: str, version: int = 0, execution: str = "first", run: str = "run") -> TransactionIds:
    return TransactionIds(f"spark-{topic}", version, execution, run, "a test")


def rows(first: int, end: int, **columns: Any) -> Iterator[pa.RecordBatch]:
    """Keyed rows in batches of ten."""
    for at in range(first, end, 10):
        numbers = [str(number) for number in range(at, min(at + 10, end))]
        yield pa.record_batch(
            {"key": numbers, "value": numbers, **{name: [value] * len(numbers) for name, value in columns.items()}}
        )


def write(options: SinkOptions, of: TransactionIds, *tasks: Iterator[pa.RecordBatch]) -> list[TransactionPart]:
    """The tasks' messages, as the driver gets them."""
    parts: list[TransactionPart] = pickle.loads(pickle.dumps([write_as_member(options, of, task) for task in tasks]))
    return parts


def values(daemon: RunningDaemon, topic: str) -> list[int]:
    return sorted(int(value or b"-1") for _, value in committed_rows(daemon.address, topic).values())


def test_rows_are_visible_with_the_commit_and_not_before(daemon: RunningDaemon, topics: tuple[str, str]) -> None:
    topic, _ = topics
    options = options_for(daemon, topic)
    parts = write(options, ids(topic), rows(0, 50), rows(50, 70), rows(0, 0))
    assert values(daemon, topic) == []
    assert [part.member is None for part in parts] == [False, False, True]
    commit_parts(options, parts)
    assert values(daemon, topic) == list(range(70))
    commit_parts(options, parts)  # as if the response had been lost
    assert values(daemon, topic) == list(range(70))


def test_members_that_the_driver_did_not_choose_are_void(daemon: RunningDaemon, topics: tuple[str, str]) -> None:
    topic, _ = topics
    options = options_for(daemon, topic)
    chosen, _twin = write(options, ids(topic), rows(0, 30), rows(0, 30))
    commit_parts(options, [chosen])
    assert values(daemon, topic) == list(range(30))


def test_several_topics_are_one_transaction(daemon: RunningDaemon, topics: tuple[str, str]) -> None:
    options = options_for(daemon, None)
    of = ids(topics[0])
    parts = write(options, of, rows(0, 20, topic=topics[0]), rows(20, 30, topic=topics[1]))
    assert (values(daemon, topics[0]), values(daemon, topics[1])) == ([], [])
    commit_parts(options, parts)
    assert (values(daemon, topics[0]), values(daemon, topics[1])) == (list(range(20)), list(range(20, 30)))


@pytest.mark.parametrize("tasks", [1, 3])
def test_a_version_that_comes_again_is_read_and_not_sent(daemon: RunningDaemon, topics: tuple[str, str], tasks: int) -> None:
    topic, _ = topics
    options = options_for(daemon, topic)
    commit_parts(options, write(options, ids(topic), rows(0, 45), rows(45, 60)))
    again = ids(topic, execution="second", run="another")
    step = 60 // tasks
    parts = write(options, again, *(rows(at, at + step) for at in range(0, 60, step)))
    assert all(part.is_skipped and part.member is None for part in parts)
    commit_parts(options, parts)
    assert values(daemon, topic) == list(range(60))


@pytest.mark.parametrize("replay", [(0, 59), (0, 61), (1, 61)], ids=["fewer", "more", "others"])
def test_other_rows_under_a_committed_version_are_an_error_or_a_warning(
    daemon: RunningDaemon, topics: tuple[str, str], replay: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    topic, _ = topics
    options = options_for(daemon, topic)
    commit_parts(options, write(options, ids(topic), rows(0, 60)))
    parts = write(options, ids(topic, execution="second", run="another"), rows(*replay))
    with pytest.raises(ReplayMismatchError, match="read other rows"):
        commit_parts(options, parts)
    with caplog.at_level(logging.WARNING):
        commit_parts(options_for(daemon, topic, failOnReplayMismatch="false"), parts)
    assert "passed over, since failOnReplayMismatch is false" in caplog.text
    assert values(daemon, topic) == list(range(60))


def test_a_version_that_goes_backwards_is_an_error(daemon: RunningDaemon, topics: tuple[str, str]) -> None:
    topic, _ = topics
    options = options_for(daemon, topic)
    commit_parts(options, write(options, ids(topic, 5), rows(0, 10)))
    with pytest.raises(ProducerFencedError, match="version 5"):
        write(options, ids(topic, 4, execution="old"), rows(10, 20))
    with pytest.raises(ProducerFencedError, match="version 5"):
        commit_parts(options, write(options, ids(topic, 4, execution="old"), rows(0, 0)))
    assert values(daemon, topic) == list(range(10))


def test_a_second_write_of_one_batch_is_a_conflict(daemon: RunningDaemon, topics: tuple[str, str]) -> None:
    topic, _ = topics
    options = options_for(daemon, topic)
    commit_parts(options, write(options, ids(topic), rows(0, 10)))
    with pytest.raises(TxnConflictError, match="give this write a txnLabel of its own"):
        write(options, ids(topic, execution="second"), rows(10, 20))
    assert values(daemon, topic) == list(range(10))


def test_a_second_write_stays_a_conflict_after_a_restart(daemon: RunningDaemon, topics: tuple[str, str]) -> None:
    """The restarted query rightly repeats the first write. The second write still has the first one's id."""
    topic, _ = topics
    options = options_for(daemon, topic)
    commit_parts(options, write(options, ids(topic), rows(0, 10)))
    commit_parts(options, write(options, ids(topic, execution="third", run="restarted"), rows(0, 10)))
    with pytest.raises(TxnConflictError, match="give this write a txnLabel of its own"):
        write(options, ids(topic, execution="fourth", run="restarted"), rows(0, 10))
    assert values(daemon, topic) == list(range(10))


def test_batch_of_no_rows_counts_as_written(daemon: RunningDaemon, topics: tuple[str, str]) -> None:
    topic, _ = topics
    options = options_for(daemon, topic)
    commit_parts(options, write(options, ids(topic, 3), rows(0, 0)))
    parts = write(options, ids(topic, 3, execution="second", run="another"), rows(0, 10))
    with pytest.raises(ReplayMismatchError):
        commit_parts(options, parts)


def test_failed_task_takes_its_rows_back(daemon: RunningDaemon, topics: tuple[str, str]) -> None:
    topic, _ = topics
    options = options_for(daemon, topic)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from rows(0, 30)
        raise RuntimeError("the query's own mistake")

    with pytest.raises(RuntimeError, match="own mistake"):
        write(options, ids(topic), failing())
    with BlockingClient(ClientConfig(bootstrap_servers=daemon.address)) as client:
        assert [one.open_members for one in client.list_transactions(prefix=f"spark-{topic}")] in ([], [0])
    commit_parts(options, write(options, ids(topic), rows(0, 30)))
    assert values(daemon, topic) == list(range(30))


def test_aborted_write_can_be_made_again(daemon: RunningDaemon, topics: tuple[str, str]) -> None:
    topic, _ = topics
    options = options_for(daemon, topic)
    parts = write(options, ids(topic), rows(0, 30))
    abort_parts(options, parts)
    with pytest.raises(TxnAbortedError):
        commit_parts(options, parts)  # delayed past the abort
    commit_parts(options, write(options, ids(topic, execution="second"), rows(0, 30)))
    assert values(daemon, topic) == list(range(30))


def test_abort_after_a_commit_takes_nothing_back(daemon: RunningDaemon, topics: tuple[str, str]) -> None:
    topic, _ = topics
    options = options_for(daemon, topic)
    parts = write(options, ids(topic), rows(0, 30))
    commit_parts(options, parts)
    abort_parts(options, parts)
    assert values(daemon, topic) == list(range(30))


def test_abort_never_raises(topics: tuple[str, str], daemon: RunningDaemon) -> None:
    topic, _ = topics
    parts = write(options_for(daemon, topic), ids(topic), rows(0, 10))
    nobody = parse_sink_options({"bootstrap.servers": "127.0.0.1:1", "topic": topic})
    abort_parts(nobody, parts)
    abort_parts(nobody, [None, None])
