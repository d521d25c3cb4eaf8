"""The option `where`: a condition on topic, partition, offset and timestamp, in a small subset of SQL. Pure: it is parsed into a
RowFilter, which is applied to whole partitions, offset ranges, and rows.

    condition    comparison [AND comparison ...]
    comparison   column (= | < | <= | > | >=) value | column IN (value, ...) | column BETWEEN value AND value
    column       topic, partition, offset, timestamp; topic takes = and IN only
    value        an integer; for topic 'text'; for timestamp a time with its zone, such as '2026-01-31 12:00:00Z', because Spark
                 does not pass the session's time zone to a source; optionally preceded by the word TIMESTAMP

Anything else is refused: a misunderstood filter would silently lose rows. Cutting a range removes only rows that cannot match;
`wanted_rows` filters the rest, so the result is exact however much was cut.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn, TypeVar

import pyarrow as pa

from brokerd.client.columns import FetchedBatch
from brokerd.client.fetching import FetchRange
from brokerd.config.settings import INT64_MAX
from brokerd.errors import ConfigError
from brokerd.ids import TopicIdPartition, TopicPartition
from brokerd.record.schema import known_schema

INT64_MIN = -INT64_MAX - 1
_US_PER_MS = 1_000
TEXT_MAX_CHARACTERS = 65_536
_COLUMNS = ("topic", "partition", "offset", "timestamp")
_TOKENS = re.compile(
    r"\s*(?:(?P<word>[A-Za-z_]\w*)|`(?P<quoted>\w+)`|(?P<number>[+-]?[0-9]+)|(?P<text>'(?:[^']|'')*')"
    r"|(?P<sign><=>|<=|>=|<>|!=|==|[=<>(),])|(?P<end>$))",
    re.ASCII,
)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Values:
    """Whole numbers from `low` to `high`, both inclusive, and in `among` if that is given."""

    low: int = INT64_MIN
    high: int = INT64_MAX
    among: frozenset[int] | None = None

    def both(self, other: Values) -> Values:
        """The intersection."""
        among = self.among if other.among is None else other.among if self.among is None else self.among & other.among
        low, high = max(self.low, other.low), min(self.high, other.high)
        if among is not None:
            among = frozenset(one for one in among if low <= one <= high)
            low, high = min(among, default=1), max(among, default=0)
        return Values(low, high, among)

    @property
    def named(self) -> frozenset[int]:
        """The numbers named individually; none for a range."""
        if self.among is not None:
            return self.among
        return frozenset([self.low]) if self.low == self.high else frozenset()

    def __contains__(self, number: int) -> bool:
        return self.low <= number <= self.high and (self.among is None or number in self.among)


ANY = Values()
NOTHING = Values(1, 0)


class Unmet(NamedTuple):
    """The topics and partitions that a filter names but a query does not read."""

    topics: frozenset[str]
    partitions: frozenset[int]  # numbers that none of the matching topics has
    is_everything_left_out: bool  # partitions exist, but none matches


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A filter; timestamps in microseconds since 1970. Without arguments it matches all rows."""

    topics: frozenset[str] | None = None
    partitions: Values = ANY
    offsets: Values = ANY
    timestamps: Values = ANY

    def reads(self, tp: TopicPartition) -> bool:
        """False if no row of the partition can match."""
        return (self.topics is None or tp.topic in self.topics) and tp.partition in self.partitions

    def unmet(self, partitions: Collection[TopicPartition]) -> Unmet:
        """The topics and partitions of the filter that are not among these partitions."""
        topics = {tp.topic for tp in partitions}
        strangers = frozenset() if self.topics is None else self.topics - topics
        numbers = {tp.partition for tp in partitions if self.topics is None or tp.topic in self.topics}
        missing = self.partitions.named - numbers if numbers else frozenset()  # without a matching topic, none counts as missing
        return Unmet(strangers, missing, bool(partitions) and not any(map(self.reads, partitions)))

    @property
    def start_time_ms(self) -> int | None:
        """A time (ms since 1970): records before the first record at or after it cannot match. None if there is no such bound."""
        return max(0, self.timestamps.low // _US_PER_MS) if self.timestamps.low > 0 else None

    @property
    def needs_rows(self) -> bool:
        """True if the rows of a cut range must still be filtered."""
        return self.timestamps != ANY or self.offsets.among is not None


ALL_ROWS = RowFilter()


def cut_ranges(
    ranges: Iterable[FetchRange], wanted: RowFilter, time_starts: Mapping[TopicIdPartition, int | None]
) -> list[FetchRange]:
    """The parts of `ranges` that must be fetched. `time_starts`: the first offset at or after `start_time_ms`, for partitions where
    it was looked up; None if there is no such record.

    An upper bound on the timestamp cuts nothing, because records need not be in timestamp order.
    """
    left = []
    for one in ranges:
        first_in_time = time_starts.get(one.tp, one.start_offset)
        if not wanted.reads(one.name) or first_in_time is None:
            continue
        start = max(one.start_offset, wanted.offsets.low, first_in_time)
        until = min(one.until_offset, wanted.offsets.high + 1)
        if start < until:
            left.append(one._replace(start_offset=start, until_offset=until))
    return left


def wanted_rows(fetched: FetchedBatch, wanted: RowFilter) -> FetchedBatch | None:
    """The matching rows of a batch; None if there are none. A record without a timestamp matches no time."""
    if not wanted.needs_rows:
        return fetched
    import pyarrow.compute as pc  # takes 30 ms, which only queries with a filter need

    mask = _mask(fetched.offsets, wanted.offsets)
    if wanted.timestamps != ANY:  # a null, compared even with every number, would leave its row out
        timestamp = known_schema(fetched.header.schema_id).timestamp
        times = fetched.arrow_batch.column(timestamp.index).view(pa.int64())
        mask = pc.and_(mask, _mask(times, wanted.timestamps))
    count = pc.sum(mask).as_py() or 0
    if count == fetched.record_count:
        return fetched
    if not count:
        return None
    return replace(fetched, arrow_batch=fetched.arrow_batch.filter(mask), offsets=fetched.offsets.filter(mask))


def _mask(column: pa.Array, values: Values) -> pa.Array:
    import pyarrow.compute as pc

    mask = pc.and_(pc.greater_equal(column, values.low), pc.less_equal(column, values.high))
    if values.among is not None:
        mask = pc.and_(mask, pc.is_in(column, value_set=pa.array(sorted(values.among), pa.int64())))
    return mask


class _Token(NamedTuple):
    kind: str  # word, quoted, number, text, sign or end
    text: str
    at: int


def parse_where(text: str) -> RowFilter:
    """Parses a condition. Raises ConfigError that shows the position of a syntax error."""
    if len(text) > TEXT_MAX_CHARACTERS:
        raise ConfigError(f"where has {len(text)} characters, at most {TEXT_MAX_CHARACTERS} are allowed: filter in the query")
    return _Parser(text).condition()


class _Parser:
    """A recursive-descent parser of one condition."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._split()
        self._next = 0

    def condition(self) -> RowFilter:
        """Parses the whole condition."""
        wanted = self._comparison(ALL_ROWS)
        while self._take_keyword("AND"):
            wanted = self._comparison(wanted)
        if self._peek().kind != "end":
            self._refuse("AND or the end of the condition")
        return wanted

    def _comparison(self, wanted: RowFilter) -> RowFilter:
        token = self._take()
        column = token.text.lower()
        if token.kind not in ("word", "quoted") or column not in _COLUMNS:
            self._refuse(f"one of {', '.join(_COLUMNS)}", token)
        if column == "topic":
            topics = self._topics()
            return replace(wanted, topics=topics if wanted.topics is None else topics & wanted.topics)
        values = self._values(self._time if column == "timestamp" else self._number)
        if column == "partition":
            return replace(wanted, partitions=wanted.partitions.both(values))
        if column == "offset":
            return replace(wanted, offsets=wanted.offsets.both(values))
        return replace(wanted, timestamps=wanted.timestamps.both(values))

    def _topics(self) -> frozenset[str]:
        if self._take_keyword("IN"):
            return frozenset(self._list(self._name))
        sign = self._take()
        if sign.text != "=":
            self._refuse("= or IN, which is all that topic takes", sign)
        return frozenset([self._name()])

    def _values(self, value: Callable[[], int]) -> Values:
        if self._take_keyword("IN"):
            return Values().both(Values(among=frozenset(self._list(value))))
        if self._take_keyword("BETWEEN"):
            low = value()
            if not self._take_keyword("AND"):
                self._refuse("AND")
            return Values(low, value())
        sign = self._take()
        if sign.kind != "sign" or sign.text not in ("=", "<", "<=", ">", ">="):
            self._refuse("=, <, <=, >, >=, IN or BETWEEN", sign)
        number = value()
        low = number + (sign.text == ">") if sign.text in ("=", ">", ">=") else INT64_MIN
        high = number - (sign.text == "<") if sign.text in ("=", "<", "<=") else INT64_MAX
        return Values(low, high) if low <= INT64_MAX and high >= INT64_MIN else NOTHING

    def _list(self, value: Callable[[], T]) -> list[T]:
        self._expect("(")
        values = [value()]
        while self._peek().text == ",":
            self._take()
            values.append(value())
        self._expect(")")
        return values

    def _number(self) -> int:
        token = self._take()
        if token.kind != "number":
            self._refuse("a whole number", token)
        if len(token.text) > len(str(INT64_MIN)) or not INT64_MIN <= int(token.text) <= INT64_MAX:
            self._refuse("a whole number of 64 bits", token)
        return int(token.text)

    def _name(self) -> str:
        token = self._take()
        if token.kind != "text":
            self._refuse("a topic's name in single quotes", token)
        return token.text

    def _time(self) -> int:
        """Microseconds since 1970."""
        self._take_keyword("TIMESTAMP")
        token = self._take()
        form = "a time with its zone in single quotes, such as '2026-01-31 12:00:00Z'"
        if token.kind != "text":
            self._refuse(form, token)
        try:
            moment = datetime.datetime.fromisoformat(token.text.strip())
        except ValueError:
            self._refuse(form, token)
        if moment.tzinfo is None:
            self._refuse(f"{form}: the session's time zone is not known here", token)
        return (moment - _EPOCH) // _MICROSECOND

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._peek()
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _take_keyword(self, keyword: str) -> bool:
        token = self._peek()
        is_there = token.kind == "word" and token.text.upper() == keyword
        if is_there:
            self._take()
        return is_there

    def _expect(self, sign: str) -> None:
        token = self._take()
        if token.kind != "sign" or token.text != sign:
            self._refuse(sign, token)

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while not tokens or tokens[-1].kind != "end":
            found = _TOKENS.match(self._text, at)
            if found is None:
                self._refuse("a column, a value or a sign", _Token("", "", len(self._text) - len(self._text[at:].lstrip())))
            kind = found.lastgroup or "end"
            text = found[kind]
            if kind == "text":
                text = text[1:-1].replace("''", "'")
            tokens.append(_Token(kind, text, found.start(kind)))
            at = found.end()
        return tokens

    def _refuse(self, expected: str, token: _Token | None = None) -> NoReturn:
        at = (token or self._peek()).at
        rest = self._text[at : at + 40].strip()
        place = f"at '{rest}'" if rest else "at its end"
        raise ConfigError(
            f"where is not understood {place}: expected {expected}. It compares topic, partition, offset and timestamp by =, <, "
            "<=, >, >=, IN or BETWEEN, joined by AND, such as offset >= 5 AND partition IN (0, 1); filter all else in the query"
        )
