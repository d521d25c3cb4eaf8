"""Decides what one principal may do: to topics, to groups, and with producer ids. Independent of calls and handlers.

Rights are given by name or prefix; granted topic ids are cached, so that hot paths make one look-up. A topic that the principal
may not see is answered like one that does not exist: by name with TOPIC_AUTHORIZATION_FAILED, by id with UNKNOWN_TOPIC_ID, with
exactly the same text. A visible topic without the right is TOPIC_AUTHORIZATION_FAILED. Groups are decided by name alone, so a
refusal does not reveal whether a group exists.

A producer id belongs to the principal that it was issued to, so that no principal can write as another's producer: raising the
epoch would fence that producer, and sequences ahead of its own would make its batches look like duplicates. (Kafka checks neither
for idempotent producers.) The id itself names its owner, so there is no state to keep, and a restart loses none:

    bit 63: 0 | bits 40 to 62: tag of its owner | bit 39: of a member of a transaction | bits 0 to 38: a number, never reused

A tag is a hash of the principal's name; the auth file is refused if two names have the same tag. Tag 0 belongs to no principal: it
is in the ids issued without authentication. So if a principal is renamed, or a broker gets an auth file, existing producers hold
ids that are not theirs any more: they get UNKNOWN_PRODUCER_ID and request new ones.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from brokerd.datadir.topic_store import TopicStore, check_topic_name, unknown_topic_id
from brokerd.errors import (
    BrokerdError,
    ConfigError,
    Fate,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    UnknownProducerIdError,
)
from brokerd.ids import INTERNAL_PREFIX, PRODUCER_TAG_SHIFT
from brokerd.server.security.audit import Audit

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{0,249}\*|[a-zA-Z0-9._-]{1,249}")
_GROUP = re.compile(r"[^*]{0,249}\*|[^*]{1,249}")
_REMEMBERED_MAX = 100_000  # cached ids; those of deleted topics stay until the cache is cleared
_TAGS = 1 << 63 - PRODUCER_TAG_SHIFT
_BELOW_TAG = (1 << PRODUCER_TAG_SHIFT) - 1
NOBODY = 0  # the tag of no principal


class ForbiddenError(BrokerdError):
    """The caller is known but may not make this call at all; becomes the status PERMISSION_DENIED."""


class Right(enum.Enum):
    """A right on a topic. No right implies another; a principal with any of them may see the topic and its offsets."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"  # create, delete, move, add partitions, alter settings, delete records


class NamePatterns:
    """A set of topics or groups: exact names, and prefixes ending in `*`."""

    __slots__ = ("_names", "_prefixes", "is_everything")

    def __init__(self, patterns: Iterable[str], form: re.Pattern[str], what: str) -> None:
        """Raises ConfigError for a pattern that is neither a name of `form` nor such a prefix."""
        given = list(patterns)
        for pattern in given:
            if not form.fullmatch(pattern) or not pattern.isprintable():
                raise ConfigError(f"{pattern[:300]!a} is no {what} name and no prefix such as 'events-*' or '*'")
        self._names = frozenset(pattern for pattern in given if not pattern.endswith("*"))
        self._prefixes = tuple(pattern[:-1] for pattern in given if pattern.endswith("*"))
        self.is_everything = "" in self._prefixes

    def __contains__(self, name: str) -> bool:
        """True if the name matches."""
        return name in self._names or name.startswith(self._prefixes)

    def __bool__(self) -> bool:
        """True if any name can match."""
        return bool(self._names or self._prefixes)


class TopicRights:
    """The topics on which each right is held, and the groups that the principal may use."""

    __slots__ = ("_groups", "_topics")

    def __init__(self, patterns: Mapping[Right, Iterable[str]], groups: Iterable[str] = ()) -> None:
        """Rights missing from `patterns` hold for no topic. Raises ConfigError."""
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
        """True if the principal may commit, read, list and delete the group's offsets. ADMIN on every topic includes that."""
        return self.administers_everything or group_id in self._groups

    @property
    def allows_groups(self) -> bool:
        """True if the principal may use any group at all."""
        return self.administers_everything or bool(self._groups)

    def allows_somewhere(self, right: Right) -> bool:
        """True if `right` holds for any topic at all."""
        return bool(self._topics[right])

    def sees(self, topic: str) -> bool:
        """True if any right holds for the topic, so that its existence is no secret."""
        return any(topic in topics for topics in self._topics.values())


class Principal(NamedTuple):
    """A caller's authenticated identity. `name` may appear in logs and errors."""

    name: str
    rights: TopicRights


NOTHING = TopicRights({})
UNLIMITED = TopicRights(dict.fromkeys(Right, ("*",)))
ANYBODY = Principal("anybody", UNLIMITED)  # every caller of a broker without authentication; may use every producer id
TRUSTED = Principal("certificate", UNLIMITED)  # every caller with a verified certificate, on a broker without an auth file

E = TypeVar("E", bound=BrokerdError)
_VERBS = {None: "see", Right.READ: "read", Right.WRITE: "write to", Right.ADMIN: "administer"}


class TopicAuthorizer:
    """The decisions about one principal; shared by all its calls and streams."""

    def __init__(self, principal: Principal, topics: TopicStore, audit: Audit | None = None) -> None:
        """Refusals go to `audit`."""
        self.principal = principal.name
        self._topics = topics
        self._tag = NOBODY if principal is ANYBODY else owner_tag(principal.name)
        self._audit = audit
        self.replace(principal.rights)

    def replace(self, rights: TopicRights) -> None:
        """Replaces the principal's rights, also for its open streams."""
        self.rights = rights
        self.is_unlimited = rights.is_unlimited  # cached, since every batch checks it
        self._granted: dict[Right | None, set[bytes]] = {right: set() for right in _VERBS}

    def require_name(self, right: Right | None, name: str) -> None:
        """Raises TopicAuthorizationFailedError unless the principal has the right on the topic (None: may see it). Raises
        InvalidTopicError first for an invalid name, so that errors, logs and the audit trail quote no overlong name."""
        check_topic_name(name, internal=True)
        if not (self.rights.sees(name) if right is None else self.rights.allows(right, name)):
            raise self.noted(self._forbidden(right, name))

    def allows_id(self, right: Right, topic_id: bytes) -> bool:
        """True if the principal has the right on a topic. For lists of topics: omitting a topic is no refusal, and leaves no audit
        line."""
        topic = self._topics.any_by_id(topic_id)
        is_clients = topic is not None and not topic.name.startswith(INTERNAL_PREFIX)
        return self.is_unlimited or (topic is not None and is_clients and self.rights.allows(right, topic.name))

    def require_id(self, right: Right | None, topic_id: bytes) -> None:
        """Raises the error for using `right` on a topic by id (None: for seeing it), unless it is allowed. An unknown id is refused
        too, unless the principal has every right on every topic."""
        if self.is_unlimited or topic_id in self._granted[right]:
            return
        name = self._topics.by_id(topic_id).name
        if not self.rights.sees(name):
            self.noted(self._forbidden(None, name))  # hidden from the caller, not from the audit trail
            raise unknown_topic_id(topic_id)
        if right is not None and not self.rights.allows(right, name):
            raise self.noted(self._forbidden(right, name))
        granted = self._granted[right]
        if len(granted) >= _REMEMBERED_MAX:
            granted.clear()
        granted.add(topic_id)

    def require_somewhere(self, right: Right) -> None:
        """Raises ForbiddenError if the principal has the right on no topic at all."""
        if not self.rights.allows_somewhere(right):
            text = f"principal '{self.principal}' may {right.value} no topic at all: rights are set in the broker's auth.file"
            raise self.noted(ForbiddenError(text))

    def require_everything(self, what: str) -> None:
        """Raises TopicAuthorizationFailedError unless the principal has every right on every topic. `what`: the operation, for the
        message."""
        if not self.is_unlimited:
            text = f"principal '{self.principal}' may not {what}: that needs every right on every topic, by the broker's auth.file"
            raise self.noted(TopicAuthorizationFailedError(text))

    def require_group(self, group_id: str) -> None:
        """Raises GroupAuthorizationFailedError for a group that the principal may not use, whether it exists or not."""
        if not self.rights.allows_group(group_id):
            text = f"principal '{self.principal}' may not use group {group_id!r}: rights are set in the broker's auth.file (groups)"
            raise self.noted(GroupAuthorizationFailedError(text))

    @contextlib.contextmanager
    def noting_refusals(self) -> Iterator[None]:
        """Writes the coordinator's refusals of another principal's transactional id to the audit trail."""
        try:
            yield
        except TransactionalIdAuthorizationFailedError as error:
            self.noted(error)
            raise

    def noted(self, error: E) -> E:
        """Writes a refusal to the audit trail, and returns its error."""
        if self._audit is not None:
            self._audit.refused(self.principal, error.message)
        return error

    def owns_producer(self, producer_id: int) -> bool:
        """True if the principal may use the producer id. Checks the tag only, since only the coordinator knows which ids are
        issued."""
        return self._tag == NOBODY or producer_id >> PRODUCER_TAG_SHIFT == self._tag

    def own_producer_id(self, producer_id: int) -> int:
        """A new producer id, with the principal's tag."""
        return producer_id if self._tag == NOBODY else self._tag << PRODUCER_TAG_SHIFT | producer_id & _BELOW_TAG

    def require_producer(self, producer_id: int) -> None:
        """Raises UnknownProducerIdError for an id that the principal may not use."""
        if not self.owns_producer(producer_id):
            raise UnknownProducerIdError(
                f"producer id {producer_id} was not issued to principal '{self.principal}': request a new one with InitProducerId",
                fate=Fate.NOT_APPENDED,
            )

    def _forbidden(self, right: Right | None, name: str) -> TopicAuthorizationFailedError:
        return TopicAuthorizationFailedError(
            f"principal '{self.principal}' may not {_VERBS[right]} topic '{name}': rights are set in the broker's auth.file"
        )


def owner_tag(principal: str) -> int:
    """The tag of all producer ids of a principal. It never changes."""
    digest = hashlib.sha256(principal.encode()).digest()
    return 1 + int.from_bytes(digest[:8], "big") % (_TAGS - 1)
