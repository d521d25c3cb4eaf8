"""`brokerd doctor`: checks a data directory, and makes the repairs that an operator requests. The checks and repairs are in
brokerd/offline/."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from brokerd.cli import EXIT_FAILED
from brokerd.cli.output import show
from brokerd.cli.parser import pairs, usage_error
from brokerd.config.settings import INT64_MAX, is_number
from brokerd.errors import DataDirectoryError, counted
from brokerd.offline import doctor
from brokerd.offline.partition_check import Finding, Severity
from brokerd.offline.rebuild import rebuild_lost

_REPAIRS = ("rebuild_checkpoint", "accept_damaged", "give_up_damaged", "rebuild_lost")


def run(args: argparse.Namespace) -> int:
    """Prints the findings, or what a repair did; returns the exit code. Raises DataDirectoryError, UsageError."""
    if args.decide and (args.decode or args.take_out or any(getattr(args, repair) for repair in _REPAIRS)):
        raise usage_error(args, "--decide excludes all other options but --member: use it last, after a repair")
    if args.member and not args.decide:
        raise usage_error(args, "--member needs --decide")
    repairs_copies = args.rebuild_checkpoint or args.accept_damaged or args.give_up_damaged or args.take_out
    if args.only_copy and not repairs_copies:
        raise usage_error(args, "--only-copy needs --accept-damaged, --give-up-damaged, --take-out or --rebuild-checkpoint")
    if args.name and not args.rebuild_lost:
        raise usage_error(args, "--name needs --rebuild-lost")
    try:
        findings = _findings(args)
    except OSError as error:
        place = error.filename or args.directory
        raise DataDirectoryError(f"{place}: a file could not be read or written: {error.strerror}") from None
    document = [{**finding._asdict(), "severity": finding.severity.value} for finding in findings]
    is_repair = args.accept_damaged or args.give_up_damaged  # the other repairs raise an error if there is nothing to repair
    healthy = "no damage was found, and nothing was changed" if is_repair else "all in order, nothing to do"
    show(args, document, _lines(findings, f"{args.directory}: {healthy}"))
    return EXIT_FAILED if _count(findings, Severity.ERROR) else 0


def _findings(args: argparse.Namespace) -> list[Finding]:
    """Runs the requested check or repair. Raises DataDirectoryError, UsageError, OSError."""
    if args.decide:
        return doctor.decide_members(args.directory, args.member, is_committed=args.decide == "commit")
    if args.take_out:
        return doctor.take_out(args.directory, *_place(args), args.only_copy)
    if args.rebuild_lost:
        names = {topic_id.lower(): name for topic_id, name in pairs(args, "--name", args.name)}
        return rebuild_lost(args.directory, names)
    if args.rebuild_checkpoint:
        return doctor.rebuild_checkpoint(args.directory, args.only_copy)
    if args.accept_damaged:
        return doctor.accept_damaged(args.directory, args.only_copy)
    if args.give_up_damaged:
        return doctor.give_up_damaged(args.directory, args.only_copy)
    return doctor.check_data_dir(args.directory, decodes_records=args.decode)


def _place(args: argparse.Namespace) -> tuple[str, int]:
    partition, _, offset = args.take_out.rpartition("@")
    if not partition or not is_number(offset, INT64_MAX):
        raise usage_error(args, f"--take-out takes PARTITION@OFFSET, as in events-0@1234, not '{args.take_out:.200}'")
    return partition, int(offset)


def _lines(findings: list[Finding], if_none: str) -> Iterator[str]:
    for finding in findings:
        place = finding.partition or finding.path
        offset = "" if finding.offset is None else f" at offset {finding.offset}"
        yield f"{finding.severity.value}: {place}{offset}: {finding.message}"
    if not findings:
        yield if_none
    else:
        yield ", ".join(counted(_count(findings, severity), severity.value) for severity in Severity)


def _count(findings: list[Finding], severity: Severity) -> int:
    return sum(finding.severity is severity for finding in findings)
