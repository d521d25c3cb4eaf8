"""`brokerd topics trim`: deletes the oldest records of a topic."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from brokerd.cli.output import print_json, table
from brokerd.cli.parser import Subparsers, add_client_options, checked, usage_error
from brokerd.errors import WireError, counted

if TYPE_CHECKING:
    from brokerd.client.blocking import BlockingClient
    from brokerd.client.consumer.bounds import Bound, LogBounds

_EPILOG = """\
WHERE: an offset N (records below it are deleted), -N (the newest N records of each partition stay), -10m (records at most so
  old stay), a time such as 2026-01-31T12:00:00Z, @MS (ms since 1970), or latest (none stays).
  An offset that no partition has got to yet is refused.
What a transaction has not decided stays, and all behind it: otherwise its commit would succeed, and its records be gone.
Readers that stand before it find their records gone. The space on disk is freed by the segment, a little later.

examples:
  brokerd topics trim events --before -7d --dry-run
  brokerd topics trim events --before 120000 --partition 3
"""


class Trim(NamedTuple):
    """One partition: where its log began, where it begins after that, the offset that was asked for, and how many offsets before
    that stay because they are not decided."""

    partition: int
    before: int
    after: int
    asked: int
    undecided: int = 0

    @property
    def offset_count(self) -> int:
        """Deleted offsets."""
        return self.after - self.before


def add_trim(verbs: Subparsers) -> None:
    """Declares the verb."""
    parser = verbs.add_parser(
        "trim",
        help="delete the oldest records of a topic, without confirmation",
        description="Deletes the records of a topic before an offset or a time, without confirmation.",
        epilog=_EPILOG,
    )
    parser.add_argument("name", metavar="NAME", help="the topic")
    parser.add_argument("--before", metavar="WHERE", required=True, help="delete what lies before this")
    parser.add_argument(
        "-p", "--partition", type=int, action="append", metavar="N", help="only in this partition; may be repeated (default: all)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be deleted, and delete nothing")
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_client_options(parser)


def before_of(args: argparse.Namespace) -> Bound:
    """The place of --before. Raises UsageError."""
    from brokerd.client.consumer.bounds import parse_bound
    from brokerd.clock import SystemClock

    return checked(args, lambda: parse_bound("--before", args.before, now_ms=SystemClock().wall_ms()))


def trim(client: BlockingClient, args: argparse.Namespace) -> int:
    """Deletes, and prints what was deleted. Raises BrokerdError, UsageError."""
    from brokerd.cli.topic_lookup import find_topic, named_partitions
    from brokerd.client.consumer.bounds import log_bounds, offsets_at
    from brokerd.client.consumer.offsets import READ_COMMITTED, READ_UNCOMMITTED, LastRecords, OffsetSpec

    before = before_of(args)
    named = named_partitions([find_topic(client, args.name)], args.partition)
    # The records that are to stay are those that readers get by default.
    bounds = log_bounds(client, named, before, READ_COMMITTED if isinstance(before, LastRecords) else READ_UNCOMMITTED)
    decided = offsets_at(client, list(named), OffsetSpec.LATEST, READ_COMMITTED)
    trims = {tp: planned(tp.partition, before, bounds[tp], decided[tp]) for tp in named}
    _refuse_beyond_all(args, max(bounds[tp].latest for tp in named), min(one.asked for one in trims.values()))
    wanted = {tp: one.after for tp, one in trims.items() if one.offset_count}
    failed: WireError | None = None
    for tp, result in (client.delete_records(wanted) if wanted and not args.dry_run else {}).items():
        if isinstance(result, WireError):
            failed = failed or result
            del trims[tp]
        else:
            trims[tp] = trims[tp]._replace(after=result)
    _print(args, list(trims.values()))
    if failed is not None:
        raise failed
    return 0


def _refuse_beyond_all(args: argparse.Namespace, end: int, asked: int) -> None:
    """Most often an offset that no partition has got to yet has a digit too many, and all records would go."""
    if asked > end:
        raise usage_error(
            args,
            f"--before {args.before} lies behind the end of the log in every partition, {end} at most, so no record would be left: "
            "give an offset up to there, or latest if that is meant; nothing was deleted",
        )


def planned(partition: int, before: Bound, log: LogBounds, decided: int) -> Trim:
    """The new start of one partition: the nearest offset that its log has, below which all is `decided`."""
    from brokerd.client.consumer.bounds import offset_of

    asked = offset_of(before, log)
    nearest = min(max(asked, log.earliest), log.latest)
    after = max(log.earliest, min(nearest, decided))
    return Trim(partition, log.earliest, after, asked, nearest - after)


def _print(args: argparse.Namespace, trims: Sequence[Trim]) -> None:
    if args.json:
        keys = ("partition", "log_start_offset", "new_log_start_offset", "asked_offset", "undecided_offsets", "deleted_offsets")
        print_json([dict(zip(keys, (*one, one.offset_count), strict=True)) for one in trims])
        return
    total = sum(one.offset_count for one in trims)
    verb = "would delete" if args.dry_run else "deleted"
    print(f"{verb} {counted(total, 'offset')} of topic '{args.name}' in {counted(len(trims), 'partition')}")
    rows = [(one.partition, one.before, one.after, one.offset_count) for one in trims]
    print(table(("PARTITION", "START", "NEW START", "OFFSETS"), rows, indent="  "))
    for one in trims:
        if one.undecided:
            undecided = f"transactions are undecided from offset {one.after} on, so their records stay"
            print(f"  {args.name}-{one.partition}: {undecided} (brokerd transactions find-hanging)")
        elif one.asked > one.after:
            print(f"  {args.name}-{one.partition}: offset {one.asked} lies behind the end of the log, {one.after}")
