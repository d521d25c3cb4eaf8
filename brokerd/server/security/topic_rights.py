"""Rights of a principal on topics, by name or prefix. Pure: knows neither calls nor which topics exist."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping

from brokerd.errors import ConfigError

_PATTERN = re.compile(r"[a-zA-Z0-9._-]{0,249}\*|[a-zA-Z0-9._-]{1,249}")


class Right(enum.Enum):
    """A right on a topic. None implies another; a principal that has any of them may see the topic and its offsets."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"  # create, delete, add partitions, alter settings, delete records


class TopicPatterns:
    """A set of topics: exact names, and prefixes that end in `*`."""

    __slots__ = ("_names", "_prefixes", "is_everything")

    def __init__(self, patterns: Iterable[str]) -> None:
        """Raises ConfigError for a pattern that is neither a topic name nor a prefix."""
        given = list(patterns)
        for pattern in given:
            if not _PATTERN.fullmatch(pattern):
                raise ConfigError(f"'{pattern[:300]}' is no topic name and no prefix such as 'events-*' or '*'")
        self._names = frozenset(pattern for pattern in given if not pattern.endswith("*"))
        self._prefixes = tuple(pattern[:-1] for pattern in given if pattern.endswith("*"))
        self.is_everything = "" in self._prefixes

    def __contains__(self, topic: str) -> bool:
        """True if the topic is one of them."""
        return topic in self._names or topic.startswith(self._prefixes)

    def __bool__(self) -> bool:
        """True if any topic can be one of them."""
        return bool(self._names or self._prefixes)


class TopicRights:
    """The topics that each right holds for."""

    __slots__ = ("_topics",)

    def __init__(self, patterns: Mapping[Right, Iterable[str]]) -> None:
        """A right that is not given holds for nothing. Raises ConfigError."""
        self._topics = {right: TopicPatterns(patterns.get(right, ())) for right in Right}

    @property
    def is_unlimited(self) -> bool:
        """True if every right holds for every topic."""
        return all(topics.is_everything for topics in self._topics.values())

    @property
    def sees_everything(self) -> bool:
        """True if some right holds for every topic."""
        return any(topics.is_everything for topics in self._topics.values())

    @property
    def administers_everything(self) -> bool:
        """True if ADMIN holds for every topic."""
        return self._topics[Right.ADMIN].is_everything

    def allows(self, right: Right, topic: str) -> bool:
        """True if `right` holds for the topic."""
        return topic in self._topics[right]

    def allows_somewhere(self, right: Right) -> bool:
        """True if `right` holds for any topic at all."""
        return bool(self._topics[right])

    def sees(self, topic: str) -> bool:
        """True if any right holds for the topic: its existence is no secret then."""
        return any(topic in topics for topics in self._topics.values())


UNLIMITED = TopicRights(dict.fromkeys(Right, ("*",)))
NOTHING = TopicRights({})
