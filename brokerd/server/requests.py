"""Limits that every request must meet before it is processed: the number of entries, and no duplicates. The one table of the
repeated fields of all requests; a test fails for a field that is missing from it.

Entries are counted in the bytes, before protobuf builds a message: two bytes of an empty entry become a hundred in memory. Then
duplicates are found, with sets. Both checks come before rights are looked up, and together cost one pass over the bytes.

Duplicates are answered once if a request only asks about topics (Metadata, DescribeTopics), as in Kafka. Any other request is
refused as a whole: it would be arbitrary which of two orders for a partition counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import DecodeError, Message

from brokerd.config.broker import BrokerConfig
from brokerd.server.failures import malformed
from brokerd.wire.methods import UNARY, UNARY_REQUEST_MAX_BYTES
from brokerd.wire.records import read_varint, skip_field

# Fields of a message besides its entries: a few; newer clients may send more, or some twice.
_OTHER_FIELDS_MAX = 64
_BYTES_TYPE = 2  # the wire type of length-delimited fields
_NUMBER_MAX_BYTES = 10
_SHORT = 16  # field numbers below this have one-byte tags
_VARINT_BYTE_MAX = 0x7F
_CREATED_MAX = 100
_DESCRIBED_MAX = 1_000
_CONFIGS_MAX = 100  # more than there are settings
_NODES_MAX = 1_000
_TOPICS = "max.topics"
_PARTITIONS = "max.partitions.per.request"

H = TypeVar("H", bound=Hashable)


class Repeated(NamedTuple):
    """A repeated field of at most `limit` entries (a number, or the setting that holds it); entries with equal `names` are
    duplicates."""

    field: str
    limit: int | str
    names: Callable[[Any], Hashable] | None = None
    is_answered_once: bool = False
    inside: tuple[Repeated, ...] = ()  # repeated fields of its entries


def _itself(entry: Any) -> Hashable:
    name: Hashable = entry
    return name


def _name(entry: Any) -> Hashable:
    return str(entry.name)


def _partition(entry: Any) -> Hashable:
    return bytes(entry.topic_id), int(entry.partition)


PARTITIONS = Repeated("partitions", _PARTITIONS, _partition)
_ASSIGNMENTS = Repeated("assignments", "max.partitions.per.topic", inside=(Repeated("node_ids", _NODES_MAX),))
_NEW_TOPICS = Repeated("topics", _CREATED_MAX, _name, inside=(_ASSIGNMENTS, Repeated("configs", _CONFIGS_MAX)))

REPEATED: dict[str, tuple[Repeated, ...]] = {
    "Metadata": (
        Repeated("topics", _TOPICS, _itself, is_answered_once=True),
        Repeated("topic_ids", _TOPICS, _itself, is_answered_once=True),
    ),
    "CreateTopics": (_NEW_TOPICS,),
    "DeleteTopics": (Repeated("names", _CREATED_MAX, _itself), Repeated("topic_ids", _CREATED_MAX, _itself)),
    "DescribeTopics": (Repeated("names", _DESCRIBED_MAX, _itself, is_answered_once=True),),
    "AlterTopicConfigs": (Repeated("set", _CONFIGS_MAX), Repeated("unset", _CONFIGS_MAX, _itself)),
    "DeleteRecords": (PARTITIONS,),
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


class _Bound(NamedTuple):
    """A repeated field in terms of bytes, by its field number in `_Bounds`."""

    name: str
    limit: int
    where: str  # the setting, in brackets, or empty
    is_number: bool
    inside: dict[int, _Bound]

    @property
    def is_plain(self) -> bool:
        """True if a field is one entry without nested counts."""
        return not self.is_number and not self.inside


_Bounds = dict[int, _Bound]


class Requests:
    """Parses and checks the requests of one broker's unary methods."""

    def __init__(self, config: BrokerConfig) -> None:
        self._bounds = {
            name: _bounds(config, REPEATED.get(name, ()), method.request.DESCRIPTOR, "") for name, method in UNARY.items()
        }

    def parse(self, name: str, data: bytes) -> Message:
        """The parsed request of the method, free of duplicates. Raises MalformedError."""
        request_type = UNARY[name].request
        what = request_type.DESCRIPTOR.name
        if len(data) > UNARY_REQUEST_MAX_BYTES:
            raise malformed(what, f"has {len(data)} bytes, more than {UNARY_REQUEST_MAX_BYTES}: split the request")
        try:
            _check_counts(data, 0, len(data), self._bounds[name], what)
            request = request_type.FromString(data)
        except (DecodeError, IndexError, ValueError):
            raise malformed(what, "the bytes cannot be parsed") from None
        for repeated in REPEATED.get(name, ()):
            _settle_doubles(request, repeated)
        return request


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
        topic_id, partition = name
        return f"partition {partition} of topic {topic_id.hex()}"
    return repr(name) if isinstance(name, str) else str(name.hex())


def _bounds(config: BrokerConfig, table: tuple[Repeated, ...], descriptor: Any, above: str) -> _Bounds:
    bounds: _Bounds = {}
    for repeated in table:
        field = descriptor.fields_by_name[repeated.field]
        is_setting = isinstance(repeated.limit, str)
        bounds[field.number] = _Bound(
            above + repeated.field,
            getattr(config, str(repeated.limit).replace(".", "_")) if is_setting else int(repeated.limit),
            f" ({repeated.limit})" if is_setting else "",
            field.message_type is None and field.cpp_type != field.CPPTYPE_STRING,
            _bounds(config, repeated.inside, field.message_type, f"{above}{repeated.field}.") if repeated.inside else {},
        )
    return bounds


def _check_counts(data: bytes, at: int, end: int, bounds: _Bounds, what: str) -> None:
    """Raises MalformedError for too many entries in `data[at:end]`, IndexError or ValueError if it is not a message."""
    counts = dict.fromkeys(bounds, 0)
    others = 0
    short = {number << 3 | _BYTES_TYPE: bound.limit for number, bound in bounds.items() if number < _SHORT and bound.is_plain}
    while at < end:
        # The most common entry has a tag and a length of one byte each; this path is ten times as fast as the one below.
        limit = short.get(data[at])
        if limit is not None and at + 1 < end and (length := data[at + 1]) <= _VARINT_BYTE_MAX:
            number = data[at] >> 3
            counts[number] += 1
            if counts[number] <= limit:
                at += 2 + length
                continue
            counts[number] -= 1
        tag, at = read_varint(data, at)
        bound = bounds.get(tag >> 3)
        if bound is None:
            others += 1
            if others > _OTHER_FIELDS_MAX:
                raise malformed(what, f"has more than {_OTHER_FIELDS_MAX} fields besides its entries")
            at = skip_field(data, at, tag & 7)
            continue
        begin, at = at, skip_field(data, at, tag & 7)
        counts[tag >> 3] += _count(data, begin, at, bound) if tag & 7 == _BYTES_TYPE else 1
        if counts[tag >> 3] > bound.limit:
            raise malformed(bound.name, f"has more than the {bound.limit} entries allowed{bound.where}")
    if at > end:
        raise IndexError(at)


def _count(data: bytes, begin: int, end: int, bound: _Bound) -> int:
    """How many entries a length-delimited field has, at least: one, except for packed numbers."""
    if bound.is_plain:
        return 1
    _, at = read_varint(data, begin)
    if bound.is_number:
        return (end - at) // _NUMBER_MAX_BYTES
    _check_counts(data, at, end, bound.inside, bound.name)
    return 1
