"""Parses the option `where`: a condition on topic, partition, offset and timestamp, in a small subset of SQL.

    condition    comparison [AND comparison ...]
    comparison   column (= | < | <= | > | >=) value | column IN (value, ...) | column BETWEEN value AND value
    column       topic, partition, offset, timestamp; topic takes = and IN only
    value        an integer; for topic 'text'; for timestamp a time with its zone, such as '2026-01-31 12:00:00Z', because Spark
                 does not pass the session's time zone to a source; optionally preceded by the word TIMESTAMP

Anything else is refused: a misunderstood filter would silently lose rows.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, NoReturn, TypeVar

from brokerd.config.settings import INT64_MAX
from brokerd.datasource.row_filter import ALL_ROWS, INT64_MIN, NOTHING, RowFilter, Values
from brokerd.errors import ConfigError

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
