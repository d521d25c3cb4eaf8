"""Rights of a principal on topics and groups, by name or prefix. Pure: knows neither calls nor which of them exist."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping

from brokerd.errors import ConfigError

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{0,249}\*|[a-zA-Z0-9._-]{1,249}")
_GROUP = re.compile(r"[^*]{0,249}\*|[^*]{1,249}")


class Right(enum.Enum):
    """A right on a topic. None implies another; a principal that has any of them may see the topic and its offsets."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"  # create, delete, add partitions, alter settings, delete records


class NamePatterns:
    """A set of topics or groups: exact names, and prefixes that end in `*`."""

    __slots__ = ("_names", "_prefixes", "is_everything")

    def __init__(self, patterns: Iterable[str], form: re.Pattern[str], what: str) -> None:
        """Raises ConfigError for a pattern that is neither a name of `form` nor a prefix."""
        given = list(patterns)
        for pattern in given:
            if not form.fullmatch(pattern) or not pattern.isprintable():
                raise ConfigError(f"{pattern[:300]!a} is no {what} name and no prefix such as 'events-*' or '*'")
        self._names = frozenset(pattern for pattern in given if not pattern.endswith("*"))
        self._prefixes = tuple(pattern[:-1] for pattern in given if pattern.endswith("*"))
        self.is_everything = "" in self._prefixes

    def __contains__(self, name: str) -> bool:
        """True if it is one of them."""
        return name in self._names or name.startswith(self._prefixes)

    def __bool__(self) -> bool:
        """True if any name can be one of them."""
        return bool(self._names or self._prefixes)


class TopicRights:
    """The topics that each right holds for, and the groups that the principal may use."""

    __slots__ = ("_groups", "_topics")

    def __init__(self, patterns: Mapping[Right, Iterable[str]], groups: Iterable[str] = ()) -> None:
        """A right that is not given holds for nothing. Raises ConfigError."""
        self._topics = {right: NamePatterns(patterns.get(right, ()), _TOPIC, "topic") for right in Right}
        self._groups = NamePatterns(groups, _GROUP, "group")

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

    def allows_group(self, group_id: str) -> bool:
        """True if the principal may commit, read, list and delete the offsets of the group. ADMIN on every topic includes that."""
        return self.administers_everything or group_id in self._groups

    @property
    def allows_groups(self) -> bool:
        """True if the principal may use any group at all."""
        return self.administers_everything or bool(self._groups)

    def allows_somewhere(self, right: Right) -> bool:
        """True if `right` holds for any topic at all."""
        return bool(self._topics[right])

    def sees(self, topic: str) -> bool:
        """True if any right holds for the topic: its existence is no secret then."""
        return any(topic in topics for topics in self._topics.values())


UNLIMITED = TopicRights(dict.fromkeys(Right, ("*",)))
NOTHING = TopicRights({})
