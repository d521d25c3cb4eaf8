"""Goal: run_available runs a writer to its end, or waits for a running query; it always stops a query that it started."""

from __future__ import annotations

import pytest

from brokerd.testing.queries import run_available


class Query:
    """A double of Spark's StreamingQuery."""

    def __init__(self, *, ends: bool = True, error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.lastProgress = {"batchId": 3}
        self.isActive = True
        self._ends = ends
        self._error = error

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802 - Spark's name
        self.calls.append(f"awaitTermination({timeout})")
        if self._error is not None:
            raise self._error
        return self._ends

    def processAllAvailable(self) -> None:  # noqa: N802 - Spark's name
        self.calls.append("processAllAvailable")

    def stop(self) -> None:
        self.calls.append("stop")


class Writer:
    """A double of Spark's DataStreamWriter."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self.triggers: list[dict[str, bool]] = []

    def trigger(self, **trigger: bool) -> Writer:
        self.triggers.append(trigger)
        return self

    def start(self) -> Query:
        return self._query


def test_a_writer_runs_with_available_now_until_its_end() -> None:
    query = Query()
    writer = Writer(query)
    assert run_available(writer, timeout_s=5) is query
    assert writer.triggers == [{"availableNow": True}]
    assert query.calls == ["awaitTermination(5)", "stop"]


def test_a_query_that_takes_too_long_is_stopped() -> None:
    query = Query(ends=False)
    with pytest.raises(TimeoutError, match=r"has not ended after 5 s, and was stopped; its last progress: {'batchId': 3}"):
        run_available(Writer(query), timeout_s=5)
    assert query.calls[-1] == "stop"


def test_the_error_of_a_query_is_raised_and_the_query_stopped() -> None:
    query = Query(error=RuntimeError("boom"))
    with pytest.raises(RuntimeError, match="boom"):
        run_available(Writer(query))
    assert query.calls[-1] == "stop"


def test_a_running_query_goes_on() -> None:
    query = Query()
    assert run_available(query) is query
    assert query.calls == ["processAllAvailable"]


def test_a_query_that_has_ended_raises_what_ended_it() -> None:
    query = Query(error=RuntimeError("boom"))
    query.isActive = False
    with pytest.raises(RuntimeError, match="boom"):
        run_available(query)


def test_a_dataframe_is_no_query() -> None:
    with pytest.raises(TypeError, match=r"query must be a DataStreamWriter \(df.writeStream...\) or a StreamingQuery, not int"):
        run_available(7)
