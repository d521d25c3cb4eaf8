"""Warns of what options name and a query does not read: assigned partitions, and topics and partitions of option `where`.

These are no errors: a partition may be added, and a topic that a pattern matches may be created, while a stream runs; a filter that
nothing meets is not wrong in a batch read either. But most often a name is mistyped, and the query would read nothing in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from brokerd.datasource.options import SourceOptions
from brokerd.datasource.planning import Snapshot
from brokerd.datasource.row_filter import ALL_ROWS, Unmet
from brokerd.ids import TopicPartition

logger = logging.getLogger(__name__)

_NAMES_MAX = 20


def report_unread(options: SourceOptions, now: Snapshot, before: Snapshot | None) -> None:
    """Says what is not there, and says it again only once it is something else than `before`, which is None for the first time."""
    if now.absent and (before is None or before.absent != now.absent):
        names = _some([str(tp) for tp in sorted(now.absent)])
        logger.warning("option assign names partitions that do not exist; each is read once it does: %s", names)
    if options.where == ALL_ROWS:
        return
    unmet = options.where.unmet(now.latest.keys())
    if before is None or options.where.unmet(before.latest.keys()) != unmet:
        _report_unmet(unmet, now.latest.keys())


def _report_unmet(unmet: Unmet, read: Collection[TopicPartition]) -> None:
    there = _some([str(tp) for tp in sorted(read)])
    if unmet.topics:
        names = _some([f"{name!r:.200}" for name in sorted(unmet.topics)])
        logger.warning("option where names topics that are not read: %s. Read now: %s", names, there)
    if unmet.partitions:
        numbers = _some([str(number) for number in sorted(unmet.partitions)])
        logger.warning("option where names partitions that are not read: %s. Read now: %s", numbers, there)
    if unmet.is_everything_left_out and not unmet.topics and not unmet.partitions:
        logger.warning("option where leaves out all that is read now: %s", there)


def _some(names: Sequence[str]) -> str:
    """The first names, and how many there are besides; "nothing" if there are none."""
    rest = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return (", ".join(names[:_NAMES_MAX]) or "nothing") + rest
