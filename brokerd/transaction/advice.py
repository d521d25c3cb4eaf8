"""Advice about a version that cannot be written, for whoever chose the transactional id: Spark's sink names ids after queries
and applications, all others are chosen by hand."""

from __future__ import annotations

_QUERY = "spark-"
_APPLICATION = "app-"


def version_is_old(transactional_id: str, last_version: int) -> str:
    """A newer version is committed."""
    if transactional_id.startswith(_QUERY):
        return (
            "The query runs from an old or copied checkpoint, or a stale driver still writes: restore the newest checkpoint, or "
            "use another transactional.id"
        )
    if transactional_id.startswith(_APPLICATION):
        return (
            f"txnVersion must rise from write to write: go on above {last_version}, or, if another program uses this txnAppId, "
            "give each its own"
        )
    return (
        f"Versions of a transactional id must rise: go on above {last_version}, or, if another program or query uses this id, give "
        "each its own. A streaming query with this transactional.id runs from an old or copied checkpoint: restore the newest"
    )


def rows_are_others(transactional_id: str, last_version: int) -> str:
    """The version is committed with other rows."""
    if transactional_id.startswith(_QUERY):
        return (
            "The checkpoint is not the one that committed it, or the query does not give the same rows twice: restore the right "
            "checkpoint, or use another transactional.id"
        )
    if transactional_id.startswith(_APPLICATION):
        return (
            f"New rows need a txnVersion above {last_version}; a repetition must give the same rows; if another program uses this "
            "txnAppId, give each its own"
        )
    return (
        f"New rows need a version above {last_version}; a repetition must give the same rows; if another program or query uses "
        "this id, give each its own. A streaming query with this transactional.id runs from another checkpoint, or does not give "
        "the same rows twice"
    )
