"""The table of commands: names, options, help. A command refers to its function by name; the function is imported when the command
runs, so help needs neither gRPC nor Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from brokerd.config.client import DEFAULT_PORT

BOOTSTRAP_SERVER_VARIABLE = "BROKERD_BOOTSTRAP_SERVER"
TOP_INTERVAL_MS = 2_000
HANGING_IDLE_MS = 60_000


class Option(NamedTuple):
    """An option or a positional argument: the arguments of argparse's add_argument."""

    flags: tuple[str, ...]
    settings: dict[str, Any]


class OneOf(NamedTuple):
    """Mutually exclusive options; with `is_required`, exactly one must be given."""

    options: tuple[Option, ...]
    is_required: bool = False


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command, or a verb of one. `run`: "module.function" in brokerd.cli; empty for a command with verbs. `description` defaults
    to the summary."""

    name: str
    summary: str
    run: str = ""
    arguments: tuple[Option | OneOf, ...] = ()
    description: str = ""
    epilog: str = ""
    verbs: tuple[Command, ...] = ()


def option(flags: str, metavar: str | None, text: str, **settings: Any) -> Option:
    """Declares an option with a value, or a positional argument. `flags`: one or two, such as "-n --name"."""
    return Option(tuple(flags.split()), {"metavar": metavar, "help": text, **settings})


def flag(flags: str, text: str) -> Option:
    """Declares an option without a value."""
    return Option(tuple(flags.split()), {"action": "store_true", "help": text})


def repeated(flags: str, metavar: str, text: str, **settings: Any) -> Option:
    """Declares an option that may be given several times."""
    return option(flags, metavar, f"{text}; may be repeated", action="append", default=[], **settings)


def _client_options(settings: str) -> tuple[Option, ...]:
    """The options of every command that connects to a broker."""
    return (
        option(
            "-b --bootstrap-server",
            "HOST:PORT",
            f"the broker (default: ${BOOTSTRAP_SERVER_VARIABLE}, otherwise 127.0.0.1:{DEFAULT_PORT})",
        ),
        repeated(
            "-X", "NAME=VALUE", f"{settings} settings by Kafka's names, such as -X default.api.timeout.ms=5000", dest="settings"
        ),
        option("--command-config", "FILE", "file with client settings such as TLS and auth.token, one NAME=VALUE per line"),
    )


_CLIENT = _client_options("client")
_JSON = flag("--json", "as JSON")
_PRINTED = (_JSON, *_CLIENT)
_QUIET = flag("-q --quiet", "no summary on standard error")
_TOPIC_CONFIG = "-c --config"
_TIMES = "ms since 1970, ISO 8601"
_TOPICS_AND_PARTITIONS = (
    option("topics", "TOPIC", "topics", nargs="*"),
    repeated("--pattern", "REGEX", "also the topics whose name contains a match of this regular expression"),
    option("-p --partition", "N", "only this partition; may be repeated (default: all)", type=int, action="append"),
)

_START = Command(
    name="start",
    summary="run a broker",
    run="start.run",
    arguments=(
        option("--config", "FILE", "TOML file with settings"),
        option("--data-dir", "DIR", "directory of all data, created if missing (data.dir; default ./brokerd-data)"),
        option("--host", None, "address to listen on (host; default 127.0.0.1)"),
        option("--port", None, f"port to listen on, 0 picks a free one (port; default {DEFAULT_PORT})"),
        option("--node-id", "N", "this node's id in a cluster (node.id)"),
        option("--cluster", "NAME", "the cluster of several nodes to belong to (cluster.name); default: the node is alone"),
        option("--coordination", "URL", "the cluster's etcd, etcd://HOST:PORT[,HOST:PORT] (coordination.servers)"),
        repeated("--set", "NAME=VALUE", "any setting", dest="settings"),
    ),
    description="""\
Runs a broker in the foreground until SIGTERM or SIGINT (Ctrl-C), then finishes requests in progress and exits with 0.
SIGHUP makes it reload its certificates and its auth file.
Works without any options: data in ./brokerd-data, on 127.0.0.1:9192. Once it serves, it prints the line
"brokerd ready on HOST:PORT" on standard output; messages go to standard error.
""",
    epilog="""\
settings are read in this order, and the last one wins: defaults, the --config file, the environment
(BROKERD_LOG_SEGMENT_BYTES for log.segment.bytes), these options. 'brokerd config --sample' lists them all.
exit codes: 0 stopped cleanly, 1 could not start or failed, 2 wrong option or setting.
""",
)

_TOPICS = Command(
    name="topics",
    summary="create, list, describe, alter, trim and delete topics",
    epilog="""\
examples:
  brokerd topics create events --partitions 8 --config retention.ms=86400000
  brokerd topics create orders --partitions 6 --replication-factor 3 --config min.insync.replicas=2
  brokerd topics describe events
  brokerd topics alter events --partitions 16 --config max.message.bytes=33554432
  brokerd topics trim events --before -7d --dry-run
""",
    verbs=(
        Command(
            name="create",
            summary="create a topic",
            run="topics.create_topic",
            arguments=(
                option("name", "NAME", "letters, digits, '.', '_' and '-', at most 249"),
                option(
                    "-p --partitions",
                    "N",
                    "number of partitions, the unit of order and of parallelism (default: the broker's num.partitions)",
                    type=int,
                ),
                option(
                    "-r --replication-factor",
                    "N",
                    "number of nodes that have a copy of each partition (default, or 0: the broker's default.replication.factor)",
                    type=int,
                ),
                repeated(_TOPIC_CONFIG, "NAME=VALUE", "a topic setting, such as retention.ms=86400000"),
                flag("--if-not-exists", "do nothing if the topic exists"),
                flag("--dry-run", "check name, partitions, copies and settings without creating the topic"),
                *_CLIENT,
            ),
        ),
        Command(
            name="list",
            summary="print the names of all topics, one per line",
            run="topics.list_topics",
            arguments=(
                flag("-l --long", "with partitions, copies, offsets and size"),
                flag("--json", "names, or with --long descriptions, as JSON"),
                *_CLIENT,
            ),
            epilog="12+ does not count partitions that are unknown, as while their leader does not answer.\n",
        ),
        Command(
            name="describe",
            summary="print partitions, offsets, sizes and settings",
            run="topics.describe_topics",
            arguments=(
                option("names", "NAME", "topics (default: all)", nargs="*"),
                flag("-a --all-configs", "also print settings inherited from the broker, and the meaning of each"),
                *_PRINTED,
            ),
            epilog="""\
START is the first offset in the log. Readers stop at STABLE with read_committed and at END with read_uncommitted. WRITTEN is
the end of the log, flushed or not. Markers of transactions take offsets too. With several nodes: LEADER and REPLICAS are the
nodes that have the partition, ISR those of them that have all that was acknowledged.
""",
        ),
        Command(
            name="alter",
            summary="add partitions, change settings",
            run="topics.alter_topic",
            arguments=(
                option("name", "NAME", "the topic"),
                option("-p --partitions", "N", "new total number of partitions", type=int),
                repeated(_TOPIC_CONFIG, "NAME=VALUE", "set a setting"),
                repeated("--delete-config", "NAME", "remove a setting: the broker's default applies"),
                flag("--dry-run", "check without changing anything"),
                *_CLIENT,
            ),
            epilog="""\
Partitions can only be added. New partitions take over part of the keys, so records with the same key may be in another
partition than before.
""",
        ),
        Command(
            name="trim",
            summary="delete the oldest records of a topic, without confirmation",
            run="topics.trim_topic",
            arguments=(
                option("name", "NAME", "the topic"),
                option("--before", "WHERE", "delete the records before this", required=True),
                _TOPICS_AND_PARTITIONS[-1],
                flag("--dry-run", "print what would be deleted, and delete nothing"),
                *_PRINTED,
            ),
            epilog="""\
WHERE: an offset N (records below it are deleted), -N (the newest N records of each partition are kept), -10m (records at most
  this old are kept), a time such as 2026-01-31T12:00:00Z, @MS (ms since 1970), or latest (all records are deleted).
  An offset above the end of every partition is refused.
Records of an open transaction are kept, and so are all records after them. A reader positioned before the new start reports
that its records are gone. The disk space is freed later, segment by segment.
""",
        ),
        Command(
            name="delete",
            summary="delete topics and all their records, without confirmation",
            run="topics.delete_topics",
            arguments=(
                option("names", "NAME", "topics", nargs="+"),
                flag("--if-exists", "ignore names that do not exist"),
                *_CLIENT,
            ),
        ),
    ),
)

_OFFSETS = Command(
    name="offsets",
    summary="print where partitions begin and end, and offsets by time",
    run="topics.print_offsets",
    arguments=(
        *_TOPICS_AND_PARTITIONS,
        option("--time", "TIME", f"also the offset of this time: {_TIMES}, or a time ago such as -10m"),
        *_PRINTED,
    ),
    epilog="""\
START is the first offset in the log. Readers stop at STABLE with read_committed and at END with read_uncommitted. OFFSETS is
the number of offsets from START to END, markers of transactions included; SIZE is their size on disk. With --time, OFFSET and
RECORD TIME are those of the first record of that time or later, or empty if there is none.

examples:
  brokerd offsets --pattern '^sensor-' --partition 0 --json
  brokerd offsets events --time -10m
""",
)

_TRANSACTIONAL_ID = option("transactional_id", "ID", "the transactional id")
_TRANSACTIONS = Command(
    name="transactions",
    summary="list, describe, abort and forget transactions; find hanging ones",
    epilog="""\
Shows your own transactions; with ADMIN on every topic, those of all principals.

examples:
  brokerd transactions list --state open
  brokerd transactions describe spark-3f1c
  brokerd transactions find-hanging --idle-ms 600000
  brokerd transactions abort spark-3f1c
""",
    verbs=(
        Command(
            name="list",
            summary="print transactional ids, one per line",
            run="transactions.list_transactions",
            arguments=(
                option("prefix", "PREFIX", "only ids that begin with this", nargs="?", default=""),
                option(
                    "-s --state", "STATE", "only those open, prepared, empty", choices=("open", "prepared", "empty"), default=""
                ),
                *_PRINTED,
            ),
            epilog="""\
COMMITTED is the last committed version; OPEN the newest version that is undecided or not yet visible; AGE the age of the oldest
open member, counted anew when the coordinator restarts, as its time-outs are. HOLDS BACK lists the partitions in which readers of
committed records stop at this transaction's first record until it ends.
""",
        ),
        Command(
            name="describe",
            summary="print the last commit and the open members",
            run="transactions.describe_transaction",
            arguments=(_TRANSACTIONAL_ID, *_PRINTED),
            description="Prints the last commit of a transactional id, its open members, and the partitions that they wrote to.",
            epilog="""\
EXPIRES IN is the time until a member's execution is aborted, unless one of its members sends a heartbeat. FROM is the first
offset of a member in a partition; readers of committed records stop at STABLE.
""",
        ),
        Command(
            name="abort",
            summary="abort open members, without confirmation",
            run="transactions.abort_transaction",
            arguments=(
                _TRANSACTIONAL_ID,
                option(
                    "--execution", "EXECUTION", "only members of this execution, as 'describe' prints it (default: all)", default=""
                ),
                *_PRINTED,
            ),
            description="Aborts the open members of a transactional id, without confirmation: readers never see their records.",
            epilog="""\
Their tasks fail at the next batch; a running query repeats the micro-batch with new members. Committed versions, and versions
whose commit is decided, stay committed.
""",
        ),
        Command(
            name="forget",
            summary="forget an id and its last version, without confirmation",
            run="transactions.forget_transactional_id",
            arguments=(_TRANSACTIONAL_ID, *_PRINTED),
            description="Makes the broker forget a transactional id, without confirmation. Any principal may use it afterwards.",
            epilog="""\
The broker also forgets the last committed version: if the query or program repeats that version, or an older one, its rows are
written twice. Stop it first, and continue after its last version. Needs ADMIN on every topic. Refused while members are open
('abort' ends them) or a commit is unfinished.
""",
        ),
        Command(
            name="find-hanging",
            summary="print open transactions that hold back readers",
            run="transactions.find_hanging",
            arguments=(
                option(
                    "--idle-ms",
                    "MS",
                    f"only transactions whose last record in the partition is at least this old (default: {HANGING_IDLE_MS})",
                    type=int,
                    default=HANGING_IDLE_MS,
                ),
                *_PRINTED,
            ),
            description="Prints, for each partition, the open transaction that holds back readers of committed records.",
            epilog="""\
A member without heartbeats expires by itself; 'abort' ends it now. A line without a PRODUCER is a decided transaction whose
marker cannot be written: the broker's log names the partition, and IDLE is the time since the decision.
""",
        ),
    ),
)

_GROUP = option("group_id", "GROUP", "the group")
_GROUP_TOPICS = "-t --topic"
_GROUPS = Command(
    name="groups",
    summary="list groups and their lag; reset and delete their offsets",
    epilog="""\
Shows your own groups; with ADMIN on every topic, those of all principals.

examples:
  brokerd groups list spark-
  brokerd groups describe invoices
  brokerd groups reset invoices --topic events --to-timestamp 2026-01-31T12:00:00Z --dry-run
  brokerd groups reset invoices --topic events:0,1 --shift-by -100
  brokerd groups delete invoices
""",
    verbs=(
        Command(
            name="list",
            summary="print groups, one per line",
            run="groups.list_groups",
            arguments=(option("prefix", "PREFIX", "only groups whose id begins with this", nargs="?", default=""), *_PRINTED),
        ),
        Command(
            name="describe",
            summary="print offsets and lag of each partition",
            run="groups.describe_group",
            arguments=(_GROUP, *_PRINTED),
            description="Prints a group's committed offset in each partition, and its lag.",
            epilog="""\
END is the end of the partition for readers of committed records (for all records: -X isolation.level=read_uncommitted). LAG is
the number of offsets up to END, SIZE their size on disk, BEHIND the age of the next record to read. If an open transaction holds
back END, a line names it, provided that it is yours or you have all rights. In a topic that the group reads, partitions without
a committed OFFSET count from their beginning.
""",
        ),
        Command(
            name="reset",
            summary="set a group's offsets, without confirmation",
            run="groups.reset_group",
            arguments=(
                option("group_id", "GROUP", "the group; it is created if it does not exist"),
                repeated(_GROUP_TOPICS, "TOPIC[:N,N]", "a topic, or some of its partitions (default: all with a committed offset)"),
                OneOf(
                    (
                        flag("--to-earliest", "to the first record of the log"),
                        flag("--to-latest", "to the end: existing records are skipped"),
                        option("--to-offset", "N", "to this offset", type=int),
                        option("--to-timestamp", "TIME", f"to the first record of this time or later: {_TIMES}, -10m"),
                        option("--shift-by", "N", "by N offsets, back if negative", type=int),
                    ),
                    is_required=True,
                ),
                flag("--dry-run", "print what would be set, and set nothing"),
                *_PRINTED,
            ),
            epilog="""\
Stop the group's readers first: a running reader continues from its own position, and its next commit overwrites this one.
An offset outside the log is moved to the nearest one inside.
""",
        ),
        Command(
            name="delete",
            summary="forget a group, without confirmation",
            run="groups.delete_group",
            arguments=(
                _GROUP,
                repeated(_GROUP_TOPICS, "TOPIC[:N,N]", "only its offsets in this topic, or in some of its partitions"),
                *_PRINTED,
            ),
            description="Forgets a group, or its offsets in some topics, without confirmation.",
            epilog="A running reader creates the group again with its next commit; a new reader begins by auto.offset.reset.\n",
        ),
    ),
)

_PRODUCE = Command(
    name="produce",
    summary="write lines from standard input or a file to a topic, one record each",
    run="produce.run",
    arguments=(
        option("topic", "TOPIC", "the topic"),
        option("--file", "FILE", "read lines from here (default: - = standard input)", default="-"),
        option("-K --key-separator", "TEXT", "the part of a line before TEXT is the key; a line without TEXT has none"),
        repeated("-H --header", "NAME=VALUE", "a header of every record"),
        option("-p --partition", "N", "write to this partition (default: by the key's hash)", type=int),
        option("-D --delimiter", "TEXT", "the text that ends a record (default: \\n)", default="\\n"),
        option("-Z --null", "TEXT", "a key or value of exactly TEXT is null; a null value is a tombstone"),
        flag("-J --json", "each line is a JSON object as 'consume --json' prints it: key, value, headers, timestamp"),
        flag("--keep-partitions", "with --json: keep the partition that each record names"),
        option("--acks", None, "when a record counts as written (default: all, flushed to disk)", choices=("all", "1", "0")),
        option(
            "--transactional-id", "ID", "write all lines in one transaction: readers of committed records see all of them, or none"
        ),
        _QUIET,
        *_client_options("producer"),
    ),
    epilog="""\
Lines are sent as they arrive. The command ends when all are acknowledged. If a line fails, the error names the input lines and
the number of records written.

examples:
  echo 'hello' | brokerd produce events
  brokerd consume events --exit --json | brokerd produce copy --json --keep-partitions
  brokerd produce events -K '\\t' --file keyed.tsv -X compression.type=zstd
  brokerd produce events --header source=test --partition 0 < lines.txt
  brokerd produce events --file day.tsv --transactional-id day-import
""",
)

_CONSUME = Command(
    name="consume",
    summary="print records of topics",
    run="consume.run",
    arguments=(
        *_TOPICS_AND_PARTITIONS,
        flag("--from-beginning", "start with the oldest record (--offset earliest)"),
        option("-o --offset", "WHERE", "start here"),
        option("--end", "WHERE", "stop before this"),
        flag("-e --exit", "stop at the current end of each partition (--end latest)"),
        option("-n --max-messages", "N", "stop after N records", type=int),
        option("--timeout-ms", "MS", "stop after this long without a new record", type=int),
        OneOf(
            (
                option("-f --format", "FORMAT", "how to print a record (default: '%%s\\n')"),
                option("-K --key-separator", "TEXT", "print key, TEXT and value"),
                flag("-J --json", "print one JSON object per line, with all fields"),
            )
        ),
        option(
            "--isolation-level",
            None,
            "whether records of open and aborted transactions are returned (default: read_committed)",
            choices=("read_committed", "read_uncommitted"),
        ),
        _QUIET,
        *_client_options("consumer"),
    ),
    description="Prints records of topics and keeps printing new ones until interrupted.\n"
    "Starts at the end; with --exit, --end or --from-beginning, at the beginning.",
    epilog="""\
WHERE: earliest, latest, an offset N, -N (the newest N records of each partition), -10m (records at most this old; ms, s, m, h,
  d), a time such as 2026-01-31T12:00:00Z, or @MS (ms since 1970). A start is included. An end is not, and is at most the
  current end of the log.
format letters: %s value, %k key, %h headers, %o offset, %p partition, %t topic, %T timestamp (ms since 1970),
  %S and %K sizes of value and key in bytes (-1 = null), %% a percent sign; \\n and \\t as usual

Records of one partition are printed in offset order; partitions are interleaved. Topics and partitions that are created later
are not read.

examples:
  brokerd consume events --from-beginning
  brokerd consume events orders --exit -f '%t-%p:%o %k = %s\\n'
  brokerd consume --pattern '^sensor-' --offset -10m --json
  brokerd consume events --exit --json | brokerd produce copy --json --keep-partitions
""",
)

_TOP = Command(
    name="top",
    summary="watch topics, rates, groups with their lag, and transactions",
    run="top.run",
    arguments=(
        option("--interval-ms", "MS", f"time between two samples (default: {TOP_INTERVAL_MS})", type=int, default=TOP_INTERVAL_MS),
        flag("--once", "take two samples, print the second with its rates, and end"),
        flag("--json", "print one JSON object per line for each sample"),
        *_CLIENT,
    ),
    description="Shows topics with their rates, groups with their lag, and open transactions, until interrupted.",
    epilog="""\
Topics are sorted by rate, groups by lag, transactions by age. OFFSETS/S and BYTES/S are the rates of writing between two
samples; markers of transactions take some offsets. BYTES/S is unknown if old records were deleted between the samples. HELD
BACK is the number of offsets that readers of committed records do not see yet; TO READ and BEHIND are a group's lag in bytes
and in time. 12+ does not count partitions that are unknown, as while their leader does not answer; rates are those of the
partitions that are known in both samples. Only the 50 groups that committed last are shown. A broker that is down is shown as
unreachable and is polled until it responds. A narrow terminal cuts the columns on the right. Press Ctrl-C to end.

examples:
  brokerd top --interval-ms 500 --bootstrap-server broker.example:9192
  brokerd top --json --once
""",
)

_INFO = Command(
    name="info",
    summary="print a broker's versions, limits and nodes",
    run="cluster.print_info",
    arguments=_PRINTED,
    epilog="examples:\n  brokerd info\n  brokerd info --bootstrap-server broker.example:9192 --json\n",
)

_PARTITION = (option("topic", "TOPIC", "the topic"), option("partition", "PARTITION", "its number", type=int))
_WAIT = (
    flag("--wait", "until it is done; what is left is printed on standard error"),
    option("--timeout-ms", "MS", "with --wait: give up after this long, with exit code 1; the move goes on", type=int),
)
_CLUSTER = Command(
    name="cluster",
    summary="print nodes, leaders and replicas; move partitions",
    epilog="""\
examples:
  brokerd cluster status
  brokerd cluster status --under-replicated
  brokerd cluster reassign events 0 --replicas 2,3,4 --wait
  brokerd cluster drain 3 --wait
  brokerd cluster elect-leaders --wait
  brokerd cluster status --json | jq '.partitions[] | select(.leader == null)'
  brokerd cluster nodes
""",
    verbs=(
        Command(
            name="status",
            summary="print nodes, and leader, replicas and in-sync replicas of each partition",
            run="cluster.print_status",
            arguments=(
                option("topics", "TOPIC", "only these topics (default: all)", nargs="*"),
                flag("--under-replicated", "only partitions with replicas that are not in sync"),
                flag("--under-min-isr", "only partitions with fewer replicas in sync than min.insync.replicas"),
                flag("--unavailable", "only partitions without a leader"),
                *_PRINTED,
            ),
            description="Prints the cluster as one of its nodes sees it.",
            epilog="""\
The controller elects leaders and places partitions; the coordinator decides on transactions and keeps the offsets of groups. EPOCH
rises with each change of a partition's leader. A partition without a LEADER is neither read nor written until one is elected: from
ISR, the replicas that have all that was acknowledged. REPLICAS 1,2 -> 3,2: the partition moves to nodes 3 and 2. ISR 1 (too few):
it is below min.insync.replicas, and what is sent with acks=all is refused.
""",
        ),
        Command(
            name="nodes",
            summary="print the nodes, one per line",
            run="cluster.print_nodes",
            arguments=_PRINTED,
            epilog="""\
STATE down: the node has copies of partitions, but is not alive. disk refuses: its disk is full, read-only or failing, as its log
says. LEVEL is the highest feature level that the node's version knows.
""",
        ),
        Command(
            name="reassign",
            summary="move a partition to other nodes, or change how many have it",
            run="cluster.reassign",
            arguments=(
                *_PARTITION,
                OneOf(
                    (
                        option("--replicas", "N,N", "the nodes that shall have the partition, the preferred leader first"),
                        flag("--stop", "stop a move that is under way"),
                    ),
                    is_required=True,
                ),
                *_WAIT,
                *_PRINTED,
            ),
            epilog="""\
New nodes get a copy first; once all of the given nodes are in sync, the others give theirs up. Reads and writes go on meanwhile. A
move that is stopped leaves the copies that are in sync by then: give --replicas again to remove them.

examples:
  brokerd cluster reassign events 0 --replicas 2,3,4 --wait
  brokerd cluster reassign events 0 --stop
""",
        ),
        Command(
            name="move-leader",
            summary="let another node with a copy lead a partition",
            run="cluster.move_leader",
            arguments=(*_PARTITION, option("node", "NODE", "the node", type=int), *_WAIT, *_PRINTED),
            epilog="The node stays the preferred leader. It leads as soon as it is in sync.\n",
        ),
        Command(
            name="elect-leaders",
            summary="let the preferred leaders lead, as before a node was away",
            run="cluster.elect_leaders",
            arguments=(option("topics", "TOPIC", "only these topics (default: all)", nargs="*"), *_WAIT, *_PRINTED),
            epilog="""\
The preferred leader is the first of a partition's REPLICAS. Where it is not in sync, or the partition moves, nothing changes, and
the exit code is 1.
""",
        ),
        Command(
            name="elect-unclean",
            summary="let an older copy lead a partition whose copies in sync are lost for good",
            run="cluster.elect_unclean",
            arguments=(
                *_PARTITION,
                flag("--dry-run", "print which copy would lead, and change nothing"),
                *_PRINTED,
            ),
            description="What was acknowledged and is not in that copy is lost. Refused while a copy in sync is alive.",
            epilog="""\
Start the nodes in ISR with their directories, if you can: then nothing is lost. If their disks are gone, start all others that have
a copy, and look at them with --dry-run: EPOCH is the leader epoch of the last record, END where the log ends. Of the copies alive,
the one with the highest epoch leads, and of several such the longest; a damaged one only if the others are empty. A former copy
that comes back and has more stays out of sync, with its records on disk. Needs every right on every topic.

examples:
  brokerd cluster elect-unclean events 0 --dry-run
  brokerd cluster elect-unclean events 0
  brokerd cluster elect-unclean __coordinator 0
""",
        ),
        Command(
            name="drain",
            summary="move everything that a node has to other nodes",
            run="cluster.drain",
            arguments=(
                option("node", "NODE", "the node, alive or not", type=int),
                flag("--dry-run", "print what would be moved, and move nothing"),
                *_WAIT,
                *_PRINTED,
            ),
            epilog="""\
Also moves the log of transactions and groups. A partition that every node alive has already stays, and the exit code is 1: give it
fewer copies with reassign, or add a node. --dry-run prints what would move and what would stay. With --wait,
partitions that are created on the node meanwhile are moved too; then stop the node. Needs every right on every topic.
""",
        ),
        Command(
            name="adopt",
            summary="make a standalone node's data directory the first node of a new cluster",
            run="start.adopt_directory",
            arguments=(
                option("--config", "FILE", "TOML file with settings"),
                option("--data-dir", "DIR", "the directory (data.dir); no broker may use it"),
                option("--node-id", "N", "the node's id in the cluster (node.id)"),
                option("--cluster", "NAME", "the new cluster (cluster.name)"),
                option("--coordination", "URL", "its etcd, etcd://HOST:PORT[,HOST:PORT] (coordination.servers)"),
                _JSON,
            ),
            description="""\
The node keeps its topics, transactions and groups, and leads all their partitions. New topics are spread over all nodes of the
cluster. Nothing leads back: a node of a cluster does not start without it.
""",
        ),
    ),
)

_DUMP_LOG = Command(
    name="dump-log",
    summary="print the contents of a data directory's files",
    run="dump_log.run",
    arguments=(
        option("paths", "PATH", "directories and files", nargs="+"),
        flag("-d --print-data", "also print the records of each batch"),
        flag("--json", "one JSON object per line"),
    ),
    description="Prints the contents of a data directory's files: segments batch by batch, indexes, snapshots, checkpoints.",
    epilog="""\
PATH is a data directory, the directory of a partition, or a file: a segment (.log), an index (.index), a producer
snapshot (.snapshot), or one of checkpoint, leader-epochs, topics, meta. Nothing is written; a broker may be running.

examples:
  brokerd dump-log brokerd-data
  brokerd dump-log brokerd-data/*/00000000000000000000.log --print-data
  brokerd dump-log brokerd-data/checkpoint --json
""",
)

_DOCTOR = Command(
    name="doctor",
    summary="check every byte of a data directory",
    run="doctor.run",
    arguments=(
        option("directory", "DIR", "the data directory (data.dir)"),
        OneOf(
            (
                flag("--rebuild-checkpoint", "rebuild a lost or damaged checkpoint: the intact part of each log counts as durable"),
                flag("--accept-damaged", "accept each damaged range as lost: reads of it fail, the rest is served, appends resume"),
                flag(
                    "--give-up-damaged",
                    "permanently discard each damaged batch and everything after it in its partition; offsets are not reused",
                ),
                flag("--rebuild-lost", "rebuild lost or damaged topics, node-epoch and meta from the logs; --name names topics"),
                flag("--decode", "also decode the records of each batch, and report batches that readers cannot decode"),
                option(
                    "--take-out",
                    "PLACE",
                    "take out the batch at this partition and offset, as in events-0@1234: readers skip it, and appends resume",
                ),
            )
        ),
        repeated(
            "--only-copy",
            "PARTITION",
            "in a cluster, with a repair: no other copy of this partition, such as events-0, is left; all others stay as they are",
        ),
        option(
            "--decide",
            None,
            "decide the outcome of transaction members whose markers are lost and whose outcome is unknown: all of them, or "
            "those given with --member; the next start writes the markers",
            choices=("commit", "abort"),
        ),
        repeated("--member", "PRODUCER", "with --decide: the producer id of a member", type=int),
        repeated(
            "--name", "ID=NAME", "with --rebuild-lost: the name of the topic with this id of 32 hex digits (default: recovered-ID)"
        ),
        flag("--json", "findings as JSON"),
    ),
    description="Checks a data directory. Without an option it changes nothing.",
    epilog="""\
Checks CRCs of headers and payloads, offsets, epochs, indexes, snapshots and the checkpoint. Stop the broker first.
Exit code 1: durable data is lost or unreadable; 0 otherwise (the next start repairs the causes of warnings).

examples:
  brokerd doctor brokerd-data --accept-damaged
  brokerd doctor brokerd-data --take-out events-0@1234
  brokerd doctor brokerd-data --decide commit
  brokerd doctor brokerd-data --rebuild-lost --name 62dc4c435f54b9d800bd78ab25bbc3c1=events
""",
)

_CONFIG = Command(
    name="config",
    summary="print a sample configuration or a systemd unit",
    run="install.print_config",
    arguments=(
        OneOf(
            (
                flag("--sample", "every setting of the broker with its meaning, range and default (TOML)"),
                flag("--systemd-unit", "a hardened unit that runs this installation"),
            ),
            is_required=True,
        ),
    ),
    description="Prints a file for a new installation.",
    epilog="""\
examples:
  brokerd config --sample > brokerd.toml
  brokerd config --systemd-unit > /etc/systemd/system/brokerd.service
""",
)

_HASH_TOKEN = Command(
    name="hash-token",
    summary="hash a token for the broker's auth file",
    run="install.print_token_hash",
    arguments=(option("--generate", "FILE", "generate a token and write it to FILE, which must not exist; only you can read it"),),
    description="Reads a token from standard input, or generates one, and prints its hash for the broker's auth.file.",
    epilog="""\
A token is never passed as an argument, since other users of the machine could see it. Put the hash into the broker's auth.file:

  [principals.etl]
  tokens = ["sha256:..."]
  write = ["events-*"]

examples:
  brokerd hash-token --generate etl.token      # writes a new token to a file, its hash to standard output
  brokerd hash-token < etl.token               # the hash of an existing token
  brokerd topics list -X auth.token.file=etl.token
""",
)

_COMPLETION = Command(
    name="completion",
    summary="print a completion script for bash or zsh",
    run="install.print_completion",
    arguments=(option("shell", "SHELL", "bash or zsh", choices=("bash", "zsh")),),
    epilog="""\
bash (with the package bash-completion):
  mkdir -p ~/.local/share/bash-completion/completions
  brokerd completion bash > ~/.local/share/bash-completion/completions/brokerd

zsh (in a directory of $fpath, before compinit):
  brokerd completion zsh > ~/.zfunc/_brokerd

Needs shtab (pip install shtab); the script itself does not.
""",
)

COMMANDS = {
    command.name: command
    for command in (
        _START,
        _TOPICS,
        _OFFSETS,
        _TRANSACTIONS,
        _GROUPS,
        _PRODUCE,
        _CONSUME,
        _TOP,
        _INFO,
        _CLUSTER,
        _DUMP_LOG,
        _DOCTOR,
        _CONFIG,
        _HASH_TOKEN,
        _COMPLETION,
    )
}
