"""Checks that each unary request must pass first: one table of the repeated fields of all requests, and checks of fields that
several requests share. A test fails if a repeated field is missing from the table.

Fields are counted in the bytes, before protobuf builds a message: the two bytes of an empty entry become a hundred in memory. Then
entries are counted, and duplicates found with sets. All of this comes before rights are looked up.

A request that only asks about topics (Metadata, DescribeTopics) gets one answer for duplicates, as in Kafka. Any other request with
duplicates is refused as a whole: choosing between two orders for one partition would be arbitrary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence, Sized
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from brokerd.config.broker import BrokerConfig
from brokerd.config.topic import REPLICAS_MAX
from brokerd.errors import InvalidRequestError
from brokerd.ids import TopicIdPartition
from brokerd.server.failures import malformed
from brokerd.wire.methods import UNARY, UNARY_REQUEST_MAX_BYTES
from brokerd.wire.records import check_field_count
from brokerd.wire.v1 import fetch_pb2

# Allowance for fields other than entries: there are a few, and newer clients may send more.
OTHER_FIELDS = 64
# Allowance of fields per entry: with this margin, one entry too many is still parsed and named in the refusal.
FIELDS_PER_ENTRY = 2
ID_BYTES = 16  # of topics, members and instances of producers
ID_MAX_CHARACTERS = 249
CONFIG_MAX_CHARACTERS = 255
_CREATED_MAX = 100
_DESCRIBED_MAX = 1_000
_CONFIGS_MAX = 100  # above the number of settings
_TOPICS = "max.topics"
_PARTITIONS = "max.partitions.per.request"

H = TypeVar("H", bound=Hashable)


class Repeated(NamedTuple):
    """A repeated field of at most `limit` entries (a number, or the setting that holds it). Entries with equal `names` are
    duplicates."""

    field: str
    limit: int | str
    names: Callable[[Any], Hashable] | None = None
    is_answered_once: bool = False
    inside: tuple[Repeated, ...] = ()  # repeated fields of its entries


def _itself(entry: Hashable) -> Hashable:
    return entry


_partition = attrgetter("topic_id", "partition")
PARTITIONS = Repeated("partitions", _PARTITIONS, _partition)
_NEW_TOPICS = Repeated("topics", _CREATED_MAX, attrgetter("name"), inside=(Repeated("configs", _CONFIGS_MAX),))

REPEATED: dict[str, tuple[Repeated, ...]] = {
    "Metadata": (
        Repeated("topics", _TOPICS, _itself, is_answered_once=True),
        Repeated("topic_ids", _TOPICS, _itself, is_answered_once=True),
    ),
    "CreateTopics": (_NEW_TOPICS,),
    "DeleteTopics": (Repeated("names", _CREATED_MAX, _itself),),
    "DescribeTopics": (Repeated("names", _DESCRIBED_MAX, _itself, is_answered_once=True),),
    "AlterTopicConfigs": (Repeated("set", _CONFIGS_MAX), Repeated("unset", _CONFIGS_MAX, _itself)),
    "DeleteRecords": (PARTITIONS,),
    "AlterPartitionReassignments": (
        Repeated("partitions", _PARTITIONS, attrgetter("name", "partition"), inside=(Repeated("replicas", REPLICAS_MAX),)),
    ),
    "ListOffsets": (PARTITIONS,),
    "CommitGroupOffsets": (Repeated("offsets", _PARTITIONS, _partition),),
    "FetchGroupOffsets": (PARTITIONS,),
    "DeleteGroup": (PARTITIONS,),
    "EndTransaction": (
        Repeated("members", _PARTITIONS),
        PARTITIONS,
        Repeated("group_offsets", _PARTITIONS, _partition),
    ),
}


class Requests:
    """Parses and checks the requests of one broker's unary methods."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._max_fields = {
            name: OTHER_FIELDS + FIELDS_PER_ENTRY * sum(self._limit(repeated) for repeated in REPEATED.get(name, ()))
            for name in UNARY
        }

    def parse(self, name: str, data: bytes) -> Message:
        """The parsed request, without duplicates. Raises MalformedError, InvalidRequestError."""
        request_type = UNARY[name].request
        what = request_type.DESCRIPTOR.name
        if len(data) > UNARY_REQUEST_MAX_BYTES:
            raise malformed(what, f"has {len(data)} bytes, more than {UNARY_REQUEST_MAX_BYTES}: split the request")
        try:
            check_field_count(data, self._max_fields[name])
            request = request_type.FromString(data)
        except (DecodeError, IndexError, ValueError):
            raise malformed(what, "the bytes cannot be parsed") from None
        for repeated in REPEATED.get(name, ()):
            self._check_entries(request, repeated, repeated.field)
            _settle_doubles(request, repeated)
        return request

    def _check_entries(self, message: Message, repeated: Repeated, field: str) -> None:
        entries = getattr(message, repeated.field)
        check_count(field, entries, self._limit(repeated), repeated.limit if isinstance(repeated.limit, str) else "")
        for inner in repeated.inside:
            for entry in entries:
                self._check_entries(entry, inner, f"{field}.{inner.field}")

    def _limit(self, repeated: Repeated) -> int:
        limit = repeated.limit
        return limit if isinstance(limit, int) else int(getattr(self._config, limit.replace(".", "_")))


def first_double(names: Iterable[H]) -> H | None:
    """The first duplicate, or None."""
    seen: set[H] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def check_doubles(repeated: Repeated, entries: Sequence[Any]) -> None:
    """Raises MalformedError if two entries name the same thing."""
    assert repeated.names is not None
    double = first_double(map(repeated.names, entries))
    if double is not None:
        raise malformed(repeated.field, f"name {_shown(double)} twice in one request: once is allowed")


def _settle_doubles(request: Message, repeated: Repeated) -> None:
    if repeated.names is None:
        return
    entries = getattr(request, repeated.field)
    if not repeated.is_answered_once:
        check_doubles(repeated, entries)
        return
    once = dict.fromkeys(entries)
    if len(once) < len(entries):
        del entries[:]
        entries.extend(once)


def _shown(name: Any) -> str:
    if isinstance(name, tuple):
        topic, partition = name
        return f"partition {partition} of topic {repr(topic) if isinstance(topic, str) else topic.hex()}"
    return repr(name) if isinstance(name, str) else str(name.hex())


def topic_id_partition(field: str, topic_id: bytes, partition: int) -> TopicIdPartition:
    """A TopicIdPartition from its fields on the wire. Raises MalformedError."""
    check_id_bytes(f"{field}.topic_id", topic_id)
    if partition < 0:
        raise malformed(f"{field}.partition", f"is {partition}, but must not be negative")
    return TopicIdPartition(topic_id, partition)


def partitions_of(field: str, entries: Iterable[Any]) -> list[TopicIdPartition]:
    """The partition that each entry of a field names. Raises MalformedError."""
    return [topic_id_partition(field, entry.topic_id, entry.partition) for entry in entries]


def reads_committed(isolation_level: int) -> bool:
    """True if a reader sees only committed records. Raises MalformedError."""
    if isolation_level not in (fetch_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED, fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED):
        raise malformed("isolation_level", f"is {isolation_level}, but must be 0 or 1")
    return isolation_level == fetch_pb2.ISOLATION_LEVEL_READ_COMMITTED


def partition_after(topic_id: bytes, partition: int) -> TopicIdPartition | None:
    """The partition after which a page begins; None for the first page. Raises MalformedError."""
    if len(topic_id) not in (0, ID_BYTES):
        raise malformed("after_topic_id", f"has {len(topic_id)} bytes, but must have {ID_BYTES} or none")
    return TopicIdPartition(topic_id, partition) if topic_id else None


def check_id_bytes(field: str, value: bytes) -> None:
    """Checks that the id of a topic, a member or an instance has 16 bytes."""
    if len(value) != ID_BYTES:
        raise malformed(field, f"has {len(value)} bytes, but must have {ID_BYTES}")


def check_count(field: str, values: Sized, limit: int, setting: str = "") -> None:
    """Checks that a repeated field has at most `limit` entries."""
    if len(values) > limit:
        name = f" ({setting})" if setting else ""
        raise malformed(field, f"has {len(values)} entries, more than the {limit} allowed{name}")


def check_not_negative(field: str, value: int) -> None:
    """Checks that a number is not negative."""
    if value < 0:
        raise malformed(field, f"is {value}, but must not be negative")


def without_leader_epoch(epoch: int, who: str) -> InvalidRequestError:
    """The error for a request without a leader epoch: after an election, a stale request could not be told from a new one."""
    return InvalidRequestError(
        f"partitions.current_leader_epoch is {epoch}, but {who} must name the partition's leader_epoch from Metadata, which is at "
        "least 1"
    )


def check_id(field: str, text: str) -> None:
    """Checks an id chosen by a client: 1 to 249 printable characters."""
    if not text:
        raise malformed(field, "must not be empty")
    check_text(field, text)


def check_text(field: str, text: str) -> None:
    """Checks that a text is short and printable."""
    if len(text) > ID_MAX_CHARACTERS:
        raise malformed(field, f"has {len(text)} characters, at most {ID_MAX_CHARACTERS} are allowed")
    if not text.isprintable():
        raise malformed(field, f"is {text!a}, but must not have control characters")


def check_config_texts(field: str, texts: Iterable[str]) -> None:
    """Checks that names and values of settings are short enough to quote in errors."""
    for text in texts:
        if len(text) > CONFIG_MAX_CHARACTERS:
            raise malformed(field, f"a name or a value has {len(text)} characters, at most {CONFIG_MAX_CHARACTERS} are allowed")
