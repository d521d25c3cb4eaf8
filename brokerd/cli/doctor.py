"""`brokerd doctor`: checks a data directory, and makes the repairs that only an operator may decide on. The checks themselves are
in brokerd/offline/doctor.py."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from brokerd.cli.output import print_json
from brokerd.cli.parser import Subparsers, usage_error
from brokerd.config.settings import INT64_MAX
from brokerd.errors import DataDirectoryError, counted

if TYPE_CHECKING:
    from brokerd.offline.partition_check import Finding

EXIT_HEALTHY = 0
EXIT_DAMAGED = 1
_REPAIRS = ("rebuild_checkpoint", "accept_damaged", "give_up_damaged", "rebuild_lost")

_EPILOG = """\
Checks every byte: CRCs of headers and payloads, offsets, epochs, indexes, snapshots, checkpoint. Stop the broker first.
Exit code 0: nothing durable is lost or unreadable (the next start repairs what warnings report); 1: something is.

examples:
  brokerd doctor brokerd-data
  brokerd doctor brokerd-data --accept-damaged
  brokerd doctor brokerd-data --decode
  brokerd doctor brokerd-data --take-out events-0@1234
  brokerd doctor brokerd-data --decide commit
  brokerd doctor brokerd-data --rebuild-lost --name 62dc4c435f54b9d800bd78ab25bbc3c1=events
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="check every byte of a data directory",
        description="Checks a data directory. Without an option it changes nothing.",
        epilog=_EPILOG,
    )
    parser.add_argument("directory", metavar="DIR", help="the data directory (data.dir)")
    _add_actions(parser.add_mutually_exclusive_group())
    parser.add_argument(
        "--decide",
        choices=["commit", "abort"],
        help="decide how members of transactions ended, where damage has taken that and nothing else tells it: of all, or of those "
        "given with --member; the next start carries it out",
    )
    parser.add_argument(
        "--member",
        metavar="PRODUCER",
        type=int,
        action="append",
        default=[],
        help="with --decide: the producer id of a member; may be repeated",
    )
    parser.add_argument(
        "--name",
        metavar="ID=NAME",
        action="append",
        default=[],
        help="with --rebuild-lost: the name of the topic with this id (32 hex digits; otherwise recovered-ID); may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="findings as JSON")


def _add_actions(actions: argparse._MutuallyExclusiveGroup) -> None:
    actions.add_argument(
        "--rebuild-checkpoint",
        action="store_true",
        help="rebuild a lost or damaged checkpoint: what is whole in each log counts as durable",
    )
    actions.add_argument(
        "--accept-damaged",
        action="store_true",
        help="accept each damaged range as lost: reads of it fail, all else is served, appends resume",
    )
    actions.add_argument(
        "--give-up-damaged",
        action="store_true",
        help="permanently give up each damaged batch and everything after it in its partition; no offset is reused",
    )
    actions.add_argument(
        "--rebuild-lost",
        action="store_true",
        help="rebuild lost or damaged topics, producer-ids, leader-epoch and meta from the logs; names of topics with --name",
    )
    actions.add_argument(
        "--decode",
        action="store_true",
        help="also decode the records of each batch, as readers do, and report batches that cannot be decoded",
    )
    actions.add_argument(
        "--take-out",
        metavar="PLACE",
        help="take out the one batch at a partition's offset, as in events-0@1234: readers skip it, and appends resume; "
        "no offset is reused",
    )


def run(args: argparse.Namespace) -> int:
    """Prints what was found or done. Raises DataDirectoryError, UsageError."""
    if args.decide and (args.decode or args.take_out or any(getattr(args, repair) for repair in _REPAIRS)):
        raise usage_error(args, "--decide stands alone: it is the last step, after a repair")
    if args.member and not args.decide:
        raise usage_error(args, "--member belongs to --decide")
    if args.name and not args.rebuild_lost:
        raise usage_error(args, "--name belongs to --rebuild-lost")
    try:
        findings = _findings(args)
    except OSError as error:
        place = error.filename or args.directory
        raise DataDirectoryError(f"{place}: a file could not be read or written: {error.strerror}") from None
    if args.json:
        print_json([{**finding._asdict(), "severity": finding.severity.value} for finding in findings])
    else:
        _print_findings(findings, args.directory)
    return EXIT_DAMAGED if _count(findings, "error") else EXIT_HEALTHY


def _findings(args: argparse.Namespace) -> list[Finding]:
    """Runs the requested check or repair. Raises DataDirectoryError, UsageError, OSError."""
    from brokerd.offline import doctor
    from brokerd.offline.rebuild import rebuild_lost

    if args.decide == "commit":
        return doctor.commit_members(args.directory, args.member)
    if args.decide == "abort":
        return doctor.abort_members(args.directory, args.member)
    if args.take_out:
        return doctor.take_out(args.directory, *_place(args))
    if args.rebuild_lost:
        return rebuild_lost(args.directory, _names(args))
    if args.rebuild_checkpoint:
        return doctor.rebuild_checkpoint(args.directory)
    if args.accept_damaged:
        return doctor.accept_damaged(args.directory)
    if args.give_up_damaged:
        return doctor.give_up_damaged(args.directory)
    return doctor.check_data_dir(args.directory, decodes_records=args.decode)


def _place(args: argparse.Namespace) -> tuple[str, int]:
    partition, _, offset = args.take_out.rpartition("@")
    is_number = offset.isascii() and offset.isdigit() and len(offset) <= len(str(INT64_MAX))  # Python refuses to read thousands
    if not partition or not is_number or int(offset) > INT64_MAX:
        raise usage_error(args, f"--take-out takes PARTITION@OFFSET, as in events-0@1234, not '{args.take_out:.200}'")
    return partition, int(offset)


def _names(args: argparse.Namespace) -> dict[str, str]:
    names = {}
    for given in args.name:
        topic_id, separator, name = given.partition("=")
        if not separator or not name:
            raise usage_error(args, f"--name takes ID=NAME, not '{given}'")
        names[topic_id.lower()] = name
    return names


def _print_findings(findings: list[Finding], directory: str) -> None:
    for finding in findings:
        place = finding.partition or finding.path
        offset = "" if finding.offset is None else f" at offset {finding.offset}"
        print(f"{finding.severity.value}: {place}{offset}: {finding.message}")
    if not findings:
        print(f"{directory}: all in order, nothing to do")
    else:
        print(", ".join(counted(_count(findings, severity), severity) for severity in ("error", "warning", "note")))


def _count(findings: list[Finding], severity: str) -> int:
    return sum(finding.severity.value == severity for finding in findings)
