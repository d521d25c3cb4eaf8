"""Advice about a version that cannot be written, for whoever chose the transactional id: Spark's sink names ids after queries
and applications, all others are chosen by hand."""

from __future__ import annotations

_QUERY = "spark-"
_APPLICATION = "app-"


def version_is_old(transactional_id: str, last_version: int) -> str:
    """A newer version is committed."""
    if transactional_id.startswith(_QUERY):
        return (
            "The query runs from an old or copied checkpoint, or a stale driver still writes: restore the newest checkpoint, or, "
            "for its rows to be written again, give it another txnLabel"
        )
    if transactional_id.startswith(_APPLICATION):
        return (
            f"txnVersion must rise from write to write: go on above {last_version}, or, if another program uses this txnAppId, "
            "give each its own"
        )
    return (
        f"Versions of a transactional id must rise: go on above {last_version}, or, if another program uses this id, "
        "give each its own"
    )


def rows_are_others(transactional_id: str, last_version: int) -> str:
    """The version is committed with other rows."""
    if transactional_id.startswith(_QUERY):
        return (
            "The checkpoint is not the one that committed it, or the query does not give the same rows twice: restore the right "
            "checkpoint, or, for its rows to be written again, give it another txnLabel"
        )
    if transactional_id.startswith(_APPLICATION):
        return (
            f"New rows need a txnVersion above {last_version}; a repetition must give the same rows; if another program uses this "
            "txnAppId, give each its own"
        )
    return (
        f"New rows need a version above {last_version}; a repetition must give the same rows; if another program uses this id, "
        "give each its own"
    )


def needs_its_own_id(transactional_id: str) -> str:
    """The version is committed by another write. Whoever gave that one a label too would write its rows a second time."""
    if transactional_id.startswith((_QUERY, _APPLICATION)):
        return "give this write a txnLabel of its own, and leave the first as it is"
    return "give this write a transactional id of its own, and leave the first as it is"
