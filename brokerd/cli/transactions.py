"""`brokerd transactions`: list, describe, abort, forget, find-hanging. transactions_report.py has the texts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from brokerd.cli.parser import Subparsers, add_client_options, add_verbs, check_range, client_config, hasty
from brokerd.config.client import ClientConfig
from brokerd.config.settings import INT32_MAX
from brokerd.config.suggestions import did_you_mean
from brokerd.errors import InvalidRequestError

if TYPE_CHECKING:
    from brokerd.client.blocking import BlockingClient

_STATES = ("open", "prepared", "empty")
_IDLE_MS = 60_000


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command."""
    parser = subparsers.add_parser(
        "transactions",
        help="list, describe, abort and forget transactions, find those that hold back readers",
        description="Transactions: list, describe, abort and forget them, find those that hold back readers of committed records.",
        epilog="Your own, or with ADMIN on every topic those of all principals.\n\n"
        "examples:\n"
        "  brokerd transactions list --state open\n"
        "  brokerd transactions describe spark-3f1c\n"
        "  brokerd transactions find-hanging --idle-ms 600000\n"
        "  brokerd transactions abort spark-3f1c\n",
    )
    verbs = add_verbs(parser)
    _add_list(verbs)
    _add_describe(verbs)
    _add_abort(verbs)
    _add_forget(verbs)
    _add_find_hanging(verbs)


def run(args: argparse.Namespace) -> int:
    """Runs the requested verb. Raises BrokerdError, UsageError."""
    from brokerd.client.blocking import BlockingClient

    config = client_config(args, ClientConfig)
    check_range(args, "--idle-ms", getattr(args, "idle_ms", None), maximum=INT32_MAX)
    with BlockingClient(hasty(config)) as client:
        verbs = {"list": _list, "describe": _describe, "abort": _abort, "forget": _forget, "find-hanging": _find_hanging}
        verbs[args.verb](client, args)
    return 0


def _add_list(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "list",
        help="print transactional ids, one per line",
        description="Prints transactional ids, one per line.",
        epilog="COMMITTED is the last committed version, OPEN the newest that is not decided or not visible yet; AGE is that\n"
        "of the oldest open member. HOLDS BACK are partitions whose readers of committed records wait for this transaction:\n"
        "what others have committed behind its first record there is not visible before it ends.\n",
    )
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only ids that begin so")
    parser.add_argument("-s", "--state", metavar="STATE", choices=_STATES, default="", help=f"only those {', '.join(_STATES)}")
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_client_options(parser)


def _list(client: BlockingClient, args: argparse.Namespace) -> None:
    from brokerd.cli.transactions_report import print_list

    print_list(client.list_transactions(args.state, args.prefix), client.find_hanging_transactions(0), as_json=args.json)


def _add_describe(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "describe",
        help="print what was committed last, and open members",
        description="Prints what a transactional id committed last, its open members, and where they have written.",
        epilog="EXPIRES IN is when a member's execution is aborted if none of its members gives a sign of life before. FROM is\n"
        "the first offset of a member in a partition; readers of committed records stop at STABLE.\n",
    )
    parser.add_argument("transactional_id", metavar="ID", help="the transactional id")
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_client_options(parser)


def _describe(client: BlockingClient, args: argparse.Namespace) -> None:
    from brokerd.cli.transactions_report import print_description

    _check_known(client, args.transactional_id)
    print_description(client.describe_transaction(args.transactional_id), as_json=args.json)


def _add_abort(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "abort",
        help="end open members, without confirmation",
        description="Ends open members of a transactional id, without confirmation: what they wrote is void.",
        epilog="Their tasks fail at their next batch; a query that still runs writes its micro-batch again with new members.\n"
        "What is committed, or prepared to be, stays committed.\n",
    )
    parser.add_argument("transactional_id", metavar="ID", help="the transactional id")
    parser.add_argument(
        "--execution",
        metavar="EXECUTION",
        default="",
        help="only members of this execution (default: of all), as 'describe' prints it",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_client_options(parser)


def _abort(client: BlockingClient, args: argparse.Namespace) -> None:
    from brokerd.cli.transactions_report import print_abort

    _check_known(client, args.transactional_id)
    ended = client.abort_transaction(args.transactional_id, args.execution)
    left = client.find_transaction(args.transactional_id)  # None: nothing to remember, it had never committed
    print_abort(args.transactional_id, args.execution, ended, left, as_json=args.json)


def _add_forget(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "forget",
        help="forget an id and its last version, without confirmation",
        description="Has the broker forget a transactional id, without confirmation: any principal may use it from then on.",
        epilog="Its last committed version is forgotten too: if its query or program repeats that version, or an older one, the\n"
        "rows are written a second time. So stop it first, and let it go on after its last version. Needs ADMIN on every\n"
        "topic; refused while members are open ('abort' ends them) or a commit is not finished.\n",
    )
    parser.add_argument("transactional_id", metavar="ID", help="the transactional id")
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_client_options(parser)


def _forget(client: BlockingClient, args: argparse.Namespace) -> None:
    from brokerd.cli.transactions_report import print_forgotten

    _check_known(client, args.transactional_id)
    print_forgotten(args.transactional_id, client.forget_transactional_id(args.transactional_id), as_json=args.json)


def _add_find_hanging(verbs: Subparsers) -> None:
    parser = verbs.add_parser(
        "find-hanging",
        help="print open transactions that hold back readers",
        description="Prints the open transaction that holds back readers of committed records, for each partition where one does.",
        epilog="A member that nobody keeps alive expires by itself. 'abort' ends it now. Without a PRODUCER, the transaction is\n"
        "decided, and the broker's log says which of its partitions takes no marker; IDLE is since when.\n",
    )
    parser.add_argument(
        "--idle-ms",
        type=int,
        metavar="MS",
        default=_IDLE_MS,
        help=f"only those whose last record there is at least so old (default: {_IDLE_MS})",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    add_client_options(parser)


def _find_hanging(client: BlockingClient, args: argparse.Namespace) -> None:
    from brokerd.cli.transactions_report import print_hanging

    print_hanging(client.find_hanging_transactions(args.idle_ms), args.idle_ms, as_json=args.json)


def _check_known(client: BlockingClient, transactional_id: str) -> None:
    """Raises InvalidRequestError that suggests the nearest transactional id if there is none of this name."""
    if client.find_transaction(transactional_id) is not None:
        return
    known = [listing.transactional_id for listing in client.list_transactions()]
    hint = did_you_mean(transactional_id, known, otherwise="'brokerd transactions list' prints those that you may see")
    raise InvalidRequestError(f"there is no transactional id '{transactional_id}': {hint}")
