"""run_available: a streaming query of Spark, to the end of the available data. Knows Spark by its methods alone, so that it serves
classic sessions and Spark Connect, and imports neither."""

from __future__ import annotations

from typing import Any

_TIMEOUT_S = 300.0


def run_available(query: Any, *, timeout_s: float = _TIMEOUT_S) -> Any:
    """Runs a query on all that its sources hold now, and returns its StreamingQuery.

    `query`: a DataStreamWriter (`df.writeStream...` before `start()`), which is started with `availableNow` and has ended when
    this returns; or a StreamingQuery that runs already, which has then processed what there was, and runs on.

    Raises what ended the query (StreamingQueryException), and TimeoutError after `timeout_s` seconds, for a writer that was started
    here: its query is stopped then, and by any other exception too.
    """
    if callable(getattr(query, "trigger", None)) and callable(getattr(query, "start", None)):
        return _run(query.trigger(availableNow=True).start(), timeout_s)
    if not callable(getattr(query, "processAllAvailable", None)):
        raise TypeError(f"query must be a DataStreamWriter (df.writeStream...) or a StreamingQuery, not {type(query).__name__}")
    if query.isActive:
        query.processAllAvailable()
    else:
        query.awaitTermination()  # raises what ended it
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
