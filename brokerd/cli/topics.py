"""`brokerd topics`: create, list, describe, alter, trim, delete. topics_report.py prints descriptions, topics_trim.py trims."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from brokerd.cli.parser import Subparsers, add_client_options, add_verbs, check_range, client_config, hasty, pairs, usage_error
from brokerd.cli.topics_trim import add_trim, before_of, trim
from brokerd.config.client import ClientConfig
from brokerd.config.settings import INT32_MAX
from brokerd.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError, WireError, counted

if TYPE_CHECKING:
    from brokerd.client.blocking import BlockingClient

_CHANGES = ("create", "alter", "trim", "delete")


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command."""
    parser = subparsers.add_parser(
        "topics",
        help="create, list, describe, alter, trim and delete topics",
        description="Topics: create, list, describe, alter, trim and delete them.",
        epilog="examples:\n"
        "  brokerd topics create events --partitions 8 --config retention.ms=86400000\n"
        "  brokerd topics describe events\n"
        "  brokerd topics alter events --partitions 16 --config max.message.bytes=33554432\n"
        "  brokerd topics trim events --before -7d --dry-run\n",
    )
    verbs = add_verbs(parser)
    _add_create(verbs)
    _add_list(verbs)
    _add_describe(verbs)
    _add_alter(verbs)
    add_trim(verbs)
    _add_delete(verbs)


def run(args: argparse.Namespace) -> int:
    """Runs the requested verb. Raises BrokerdError, UsageError."""
    from brokerd.client.blocking import BlockingClient

    config = client_config(args, ClientConfig)
    check_range(args, "--partitions", getattr(args, "partitions", None), maximum=INT32_MAX)
    if args.verb == "trim":
        before_of(args)  # mistakes in the command line come before any connection
    with BlockingClient(config if args.verb in _CHANGES else hasty(config)) as client:
        return _VERBS[args.verb](client, args)


def _add_create(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "create",
        help="create a topic",
        description="Creates a topic.",
        epilog="examples:\n"
        "  brokerd topics create events --partitions 8\n"
        "  brokerd topics create audit --partitions 1 --config retention.ms=-1 --if-not-exists\n",
    )
    parser.add_argument("name", metavar="NAME", help="letters, digits, '.', '_' and '-', at most 249")
    parser.add_argument(
        "-p",
        "--partitions",
        type=int,
        metavar="N",
        help="number of partitions, the unit of order and of parallelism (default: the broker's num.partitions)",
    )
    _add_config(parser, "a topic setting, such as retention.ms=86400000; may be repeated")
    parser.add_argument("--if-not-exists", action="store_true", help="succeed without doing anything if the topic exists")
    parser.add_argument("--dry-run", action="store_true", help="check name, partitions and settings without creating the topic")
    add_client_options(parser)


def _create(client: BlockingClient, args: argparse.Namespace) -> int:
    from brokerd.client.topics import NewTopic

    new = NewTopic(args.name, args.partitions or 0, pairs(args, "--config", args.config))
    _look_first(args)
    result = client.create_topics([new], validate_only=args.dry_run)[args.name]
    if isinstance(result, TopicAlreadyExistsError) and args.if_not_exists:
        count = client.metadata([args.name]).topic(args.name).partition_count
        print(f"topic '{args.name}' already exists with {counted(count, 'partition')}: nothing to do")
        return 0
    if isinstance(result, WireError):
        raise result
    if args.dry_run:
        print(f"topic '{args.name}' can be created")
        return 0
    count = client.metadata([args.name]).topic(args.name).partition_count
    print(f"created topic '{args.name}' with {counted(count, 'partition')}")
    return 0


def _add_list(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "list", help="print the names of all topics", description="Prints the names of all topics, one per line."
    )
    parser.add_argument("-l", "--long", action="store_true", help="with partitions, offsets and size")
    parser.add_argument("--json", action="store_true", help="names, or with --long descriptions, as JSON")
    add_client_options(parser)


def _list(client: BlockingClient, args: argparse.Namespace) -> int:
    from brokerd.cli.topics_report import print_long, print_names

    if args.long:
        print_long(_found(client.describe_topics()), as_json=args.json)
    else:
        print_names(
            sorted(name for name, topic in client.metadata(None).topics.items() if not topic.is_internal), as_json=args.json
        )
    return 0


def _add_describe(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "describe",
        help="print partitions, offsets, sizes and settings",
        description="Prints partitions, offsets, sizes and settings of topics, or of all topics.",
        epilog="Offsets: 'start' is the first offset in the log, 'stable' and 'end' are where read_committed and read_uncommitted\n"
        "readers stop, 'written' is where the log ends, flushed or not. Markers of transactions take offsets too.\n",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="topics (default: all)")
    parser.add_argument(
        "-a", "--all-configs", action="store_true", help="also print settings inherited from the broker, and the meaning of each"
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_client_options(parser)


def _describe(client: BlockingClient, args: argparse.Namespace) -> int:
    from brokerd.cli.topic_lookup import with_nearest_name
    from brokerd.cli.topics_report import print_descriptions

    results = client.describe_topics(args.names)
    for name, result in results.items():
        if isinstance(result, WireError):
            raise with_nearest_name(client, name, result)
    print_descriptions(_found(results), as_json=args.json, all_configs=args.all_configs)
    return 0


def _add_alter(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "alter",
        help="add partitions, change settings",
        description="Adds partitions to a topic, or changes its settings.",
        epilog="A topic never loses partitions. New partitions take over part of the keys: records of one key written before and\n"
        "after the change are in different partitions.\n",
    )
    parser.add_argument("name", metavar="NAME", help="the topic")
    parser.add_argument("-p", "--partitions", type=int, metavar="N", help="new total number of partitions")
    _add_config(parser, "set a setting; may be repeated")
    parser.add_argument(
        "--delete-config",
        metavar="NAME",
        action="append",
        default=[],
        help="remove a setting, so that the broker's applies; may be repeated",
    )
    parser.add_argument("--dry-run", action="store_true", help="check without changing anything")
    add_client_options(parser)


def _alter(client: BlockingClient, args: argparse.Namespace) -> int:
    from brokerd.cli.topic_lookup import find_topic

    to_set = pairs(args, "--config", args.config)
    if args.partitions is None and not to_set and not args.delete_config:
        raise usage_error(args, "nothing to change: give --partitions, --config or --delete-config")
    _look_first(args)
    before = find_topic(client, args.name).partition_count
    done = []
    # Both are checked before either is applied, so that a topic is never left half changed.
    for validate_only in (True,) if args.dry_run else (True, False):
        if args.partitions is not None:
            client.create_partitions(args.name, args.partitions, validate_only=validate_only)
        if to_set or args.delete_config:
            client.alter_topic_configs(args.name, set_=to_set, unset=args.delete_config, validate_only=validate_only)
    if args.partitions is not None:
        done.append(f"partitions {before} -> {args.partitions}")
    done.extend(f"{name}={value}" for name, value in to_set.items())
    done.extend(f"{name} as the broker's" for name in args.delete_config)
    print(f"{'could change' if args.dry_run else 'changed'} topic '{args.name}': {', '.join(done)}")
    return 0


def _add_delete(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "delete",
        help="delete topics and all their records, without confirmation",
        description="Deletes topics and all their records, without confirmation.",
    )
    parser.add_argument("names", metavar="NAME", nargs="+", help="topics")
    parser.add_argument("--if-exists", action="store_true", help="ignore names that do not exist")
    add_client_options(parser)


def _delete(client: BlockingClient, args: argparse.Namespace) -> int:
    from brokerd.cli.topic_lookup import with_nearest_name

    _look_first(args)
    failed: WireError | None = None
    for name, result in client.delete_topics(args.names).items():
        if not isinstance(result, WireError):
            print(f"deleted topic '{name}'")
        elif isinstance(result, UnknownTopicOrPartitionError) and args.if_exists:
            print(f"there is no topic '{name}': nothing to do")
        else:
            failed = failed or with_nearest_name(client, name, result, may_create=False)
    if failed is not None:
        raise failed
    return 0


def _trim(client: BlockingClient, args: argparse.Namespace) -> int:
    _look_first(args)
    return trim(client, args)


def _look_first(args: argparse.Namespace) -> None:
    """Contacts the broker with a short timeout first, so that a mistyped address shows soon: changing thousands of partitions may
    take long."""
    from brokerd.client.blocking import BlockingClient

    with BlockingClient(hasty(client_config(args, ClientConfig))) as client:
        client.server_info()


def _add_config(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("-c", "--config", metavar="NAME=VALUE", action="append", default=[], help=text)


def _found(results: dict[str, Description | WireError]) -> list[Description]:
    return [result for result in results.values() if not isinstance(result, WireError)]


_VERBS = {"create": _create, "list": _list, "describe": _describe, "alter": _alter, "trim": _trim, "delete": _delete}

if TYPE_CHECKING:
    from brokerd.client.topics import TopicDescription as Description
