"""run_available: runs a Spark streaming query to the end of the available data. Duck-typed, so that it works with classic sessions
and Spark Connect and imports neither."""

from __future__ import annotations

from typing import Any

_TIMEOUT_S = 300.0


def run_available(query: Any, *, timeout_s: float = _TIMEOUT_S) -> Any:
    """Runs a query on all data that its sources hold now, and returns its StreamingQuery.

    `query`: a DataStreamWriter (`df.writeStream...` before `start()`), which is started with `availableNow` and runs to its end; or
    a running StreamingQuery, which processes the available data and keeps running.

    Raises the query's exception (StreamingQueryException). A query started here is always stopped on return; if it has not ended
    after `timeout_s` seconds, TimeoutError is raised.
    """
    if callable(getattr(query, "trigger", None)) and callable(getattr(query, "start", None)):
        return _run(query.trigger(availableNow=True).start(), timeout_s)
    if not callable(getattr(query, "processAllAvailable", None)):
        raise TypeError(f"query must be a DataStreamWriter (df.writeStream...) or a StreamingQuery, not {type(query).__name__}")
    if query.isActive:
        query.processAllAvailable()
    else:
        query.awaitTermination()  # raises the exception that ended it
    return query


def _run(query: Any, timeout_s: float) -> Any:
    try:
        if not query.awaitTermination(timeout_s):
            raise TimeoutError(
                f"the query has not ended after {timeout_s:g} s, and was stopped; its last progress: {query.lastProgress}; "
                "give a longer timeout_s if it only needs more time"
            )
    finally:
        query.stop()
    return query
