"""`brokerd groups`: list, describe, reset, delete. group_reset.py decides, groups_report.py has the texts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from brokerd.cli.parser import Subparsers, add_client_options, add_verbs, checked, client_config, hasty, usage_error
from brokerd.config.client import ConsumerConfig
from brokerd.config.settings import INT64_MAX
from brokerd.config.suggestions import did_you_mean
from brokerd.errors import UnknownGroupError

if TYPE_CHECKING:
    from brokerd.cli.group_reset import Bounds, Target
    from brokerd.client.blocking import BlockingClient
    from brokerd.ids import TopicIdPartition

Named = Mapping["TopicIdPartition", str]  # partitions and the names of their topics


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command."""
    parser = subparsers.add_parser(
        "groups",
        help="list and describe groups of readers and their lag, reset and delete their offsets",
        description="Groups of readers: how far they have read and what is left, and setting or deleting their offsets.",
        epilog="Your own, or with ADMIN on every topic those of all principals.\n\n"
        "examples:\n"
        "  brokerd groups list spark-\n"
        "  brokerd groups describe invoices\n"
        "  brokerd groups reset invoices --topic events --to-timestamp 2026-01-31T12:00:00Z --dry-run\n"
        "  brokerd groups reset invoices --topic events:0,1 --shift-by -100\n"
        "  brokerd groups delete invoices\n",
    )
    verbs = add_verbs(parser)
    _add_list(verbs)
    _add_describe(verbs)
    _add_reset(verbs)
    _add_delete(verbs)


def run(args: argparse.Namespace) -> int:
    """Runs the requested verb. Raises BrokerdError, UsageError."""
    from brokerd.client.blocking import BlockingClient

    config = client_config(args, ConsumerConfig)
    verbs = {"list": _list, "describe": _describe, "reset": _reset, "delete": _delete}
    if args.verb == "reset":
        _target(args)  # mistakes in the command line come before any connection
    with BlockingClient(hasty(config)) as client:
        verbs[args.verb](client, args, config.isolation_level)
    return 0


def _add_list(verbs: Subparsers) -> None:
    parser = verbs.add_parser("list", help="print groups, one per line", description="Prints groups, one per line.")
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only groups whose id begins so")
    _add_common(parser)


def _list(client: BlockingClient, args: argparse.Namespace, _isolation: str) -> None:
    from brokerd.cli.groups_report import print_list

    print_list(client.list_groups(args.prefix), as_json=args.json)


def _add_describe(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "describe",
        help="print offsets and lag of each partition",
        description="Prints how far a group has read each partition, and what it has left to read.",
        epilog="END is where readers of committed records see the partition end (of all: -X isolation.level=read_uncommitted),\n"
        "LAG the offsets up to it, SIZE the bytes on disk of their batches. BEHIND is how long the next record has been there.\n"
        "A partition that ends before an open transaction has a line that names it, if it is yours or you have all rights.\n"
        "Partitions without a committed OFFSET, of topics that the group reads, are counted from their beginning.\n",
    )
    parser.add_argument("group_id", metavar="GROUP", help="the group")
    _add_common(parser)


def _describe(client: BlockingClient, args: argparse.Namespace, isolation: str) -> None:
    from brokerd.cli.groups_report import print_description
    from brokerd.client.consumer.offsets import READ_COMMITTED

    try:
        described = client.describe_group(args.group_id, isolation)
    except UnknownGroupError:
        raise _with_nearest(client, args.group_id) from None
    held_back = client.find_hanging_transactions(0).transactions if isolation == READ_COMMITTED else []
    print_description(described, held_back, as_json=args.json)


def _add_reset(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "reset",
        help="set a group's offsets, without confirmation",
        description="Sets a group's offsets in some topics, without confirmation.",
        epilog="Stop the group's readers first: one that runs goes on from where it is, and its next commit counts.\n"
        "An offset outside of the log becomes the nearest one in it.\n",
    )
    parser.add_argument("group_id", metavar="GROUP", help="the group; it is made if there is none")
    _add_topics(parser, "a topic, or some of its partitions; may be repeated (default: all that the group has an offset of)")
    targets = parser.add_mutually_exclusive_group(required=True)
    targets.add_argument("--to-earliest", action="store_true", help="to the first record of the log")
    targets.add_argument("--to-latest", action="store_true", help="to the end: what is there is passed over")
    targets.add_argument("--to-offset", type=int, metavar="N", help="to this offset")
    targets.add_argument(
        "--to-timestamp", metavar="TIME", help="to the first record of this time or later: ms since 1970, ISO 8601, -10m"
    )
    targets.add_argument("--shift-by", type=int, metavar="N", help="by so many offsets, back if negative")
    parser.add_argument("--dry-run", action="store_true", help="print what would be set, and set nothing")
    _add_common(parser)


def _reset(client: BlockingClient, args: argparse.Namespace, isolation: str) -> None:
    from brokerd.cli.group_reset import new_offset
    from brokerd.cli.groups_report import Reset, print_reset
    from brokerd.client.group_offsets import OffsetAndMetadata

    target = _target(args)
    named = _selected(client, args)
    bounds = _bounds(client, args.group_id, named, target, isolation)
    new = {tp: new_offset(f"{name}-{tp.partition}", target, bounds[tp]) for tp, name in named.items()}
    if not args.dry_run:
        refused = client.commit_group_offsets(args.group_id, {tp: OffsetAndMetadata(one.offset) for tp, one in new.items()})
        for error in refused.values():
            raise error
    resets = [Reset(name, tp.partition, bounds[tp].committed, new[tp]) for tp, name in named.items()]
    print_reset(args.group_id, resets, is_done=not args.dry_run, as_json=args.json)


def _add_delete(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "delete",
        help="forget a group, without confirmation",
        description="Forgets a group, or its offsets in some topics, without confirmation.",
        epilog="A reader that runs makes it again with its next commit; one that starts begins where auto.offset.reset says.\n",
    )
    parser.add_argument("group_id", metavar="GROUP", help="the group")
    _add_topics(parser, "only its offsets in this topic, or in some of its partitions; may be repeated")
    _add_common(parser)


def _delete(client: BlockingClient, args: argparse.Namespace, _isolation: str) -> None:
    from brokerd.cli.groups_report import print_deleted

    tps = list(_named(client, args)) if args.topic else []
    try:
        count = client.delete_group(args.group_id, tps)
    except UnknownGroupError:
        raise _with_nearest(client, args.group_id) from None
    print_deleted(args.group_id, count, is_whole=not args.topic, as_json=args.json)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_client_options(parser)


def _add_topics(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("-t", "--topic", metavar="TOPIC[:N,N]", action="append", default=[], help=text)


def _target(args: argparse.Namespace) -> Target:
    from brokerd.cli.group_reset import EARLIEST, LATEST, Target
    from brokerd.client.consumer.bounds import parse_timestamp
    from brokerd.clock import SystemClock

    for option, value in (("--to-offset", args.to_offset), ("--shift-by", args.shift_by)):
        if value is not None and (abs(value) > INT64_MAX or (option == "--to-offset" and value < 0)):
            raise usage_error(args, f"{option} is {value}, but offsets lie between 0 and {INT64_MAX}")
    if args.to_earliest:
        return EARLIEST
    if args.to_latest:
        return LATEST
    if args.to_timestamp is not None:
        now_ms = SystemClock().wall_ms()
        return Target(wanted=checked(args, lambda: parse_timestamp("--to-timestamp", args.to_timestamp, now_ms=now_ms)))
    return Target(exact=args.to_offset, shift=args.shift_by)


def _selected(client: BlockingClient, args: argparse.Namespace) -> Named:
    """The partitions to set: those that are named, or all of the group. Raises UnknownGroupError."""
    if args.topic:
        return _named(client, args)
    tps = list(client.group_offsets(args.group_id))
    if not tps:
        raise UnknownGroupError(f"group '{args.group_id}' has no offsets: name the topics to set, with --topic")
    names = {topic.topic_id: topic.name for topic in client.metadata_by_id(sorted({tp.topic_id for tp in tps})).topics.values()}
    return _sorted({tp: names[tp.topic_id] for tp in tps if tp.topic_id in names})


def _named(client: BlockingClient, args: argparse.Namespace) -> Named:
    from brokerd.cli.group_reset import parse_selection
    from brokerd.cli.topic_lookup import check_partition, find_topic
    from brokerd.ids import TopicIdPartition

    named: dict[TopicIdPartition, str] = {}
    for text in args.topic:
        name, partitions = checked(args, lambda text=text: parse_selection(text))  # type: ignore[misc]
        topic = find_topic(client, name)
        for partition in range(topic.partition_count) if partitions is None else partitions:
            check_partition(topic, partition)
            named[TopicIdPartition(topic.topic_id, partition)] = topic.name
    return _sorted(named)


def _sorted(named: Named) -> Named:
    return dict(sorted(named.items(), key=lambda item: (item[1], item[0])))


def _bounds(client: BlockingClient, group_id: str, named: Named, target: Target, isolation: str) -> dict[TopicIdPartition, Bounds]:
    from brokerd.cli.group_reset import Bounds
    from brokerd.client.consumer.bounds import offsets_at
    from brokerd.client.consumer.offsets import OffsetSpec
    from brokerd.client.group_offsets import OffsetAndMetadata

    tps = list(named)
    committed = client.group_offsets(group_id, tps)
    first = offsets_at(client, tps, OffsetSpec.EARLIEST, isolation)
    end = offsets_at(client, tps, OffsetSpec.LATEST, isolation)
    at_time = offsets_at(client, tps, target.wanted, isolation) if isinstance(target.wanted, int) else {}
    known = {tp: one.offset for tp, one in committed.items() if isinstance(one, OffsetAndMetadata)}
    return {tp: Bounds(first[tp], end[tp], known.get(tp, -1), at_time.get(tp, -1)) for tp in tps}


def _with_nearest(client: BlockingClient, group_id: str) -> UnknownGroupError:
    """The error that suggests the nearest group if there is none of this id."""
    known = [group.group_id for group in client.list_groups()]
    hint = did_you_mean(group_id, known, otherwise="'brokerd groups list' prints those that you may see")
    return UnknownGroupError(f"there is no group '{group_id}': {hint}")
