"""Decides what one principal may do to topics and groups. Grants by topic id are remembered: one look-up on hot paths.

A topic that the principal may not see is answered like one that does not exist: by name TOPIC_AUTHORIZATION_FAILED, by id
UNKNOWN_TOPIC_ID, each word for word the same. A topic that it sees without having the right is TOPIC_AUTHORIZATION_FAILED. A group
is judged by its name alone, so a refusal does not tell whether it exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from brokerd.datadir.topic_store import Topic
from brokerd.errors import (
    Fate,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    UnknownProducerIdError,
    UnknownTopicIdError,
    WireError,
)
from brokerd.server.security.auth_file import Principal
from brokerd.server.security.producer_owners import ProducerOwners, owner_tag
from brokerd.server.security.topic_rights import Right, TopicRights

_REMEMBERED_MAX = 100_000  # ids of deleted topics stay until then
_VERBS = {None: "see", Right.READ: "read", Right.WRITE: "write to", Right.ADMIN: "administer"}


OnRefused: TypeAlias = "Callable[[str, WireError], None]"


class Topics(Protocol):
    """The topics that exist."""

    def has(self, name: str) -> bool:
        """True if there is a topic of that name."""

    def by_id(self, topic_id: bytes) -> Topic:
        """Raises UnknownTopicIdError."""


class TopicAuthorizer:
    """The decisions about one principal; shared by all its calls and streams."""

    __slots__ = (
        "_granted",
        "_on_refused",
        "_owners",
        "_rights",
        "_tag",
        "_topics",
        "is_unlimited",
        "principal",
    )

    def __init__(
        self, principal: Principal, topics: Topics, owners: ProducerOwners | None = None, on_refused: OnRefused | None = None
    ) -> None:
        """Without `owners` everybody may write with any producer id. `on_refused` is called with the principal and the error."""
        self._on_refused = on_refused
        self.principal = principal.name
        self._topics = topics
        self._owners = owners
        self._tag = owner_tag(principal.name)
        self.replace(principal.rights)

    def replace(self, rights: TopicRights) -> None:
        """Replaces the principal's rights, also for its open streams."""
        self._rights = rights
        self.is_unlimited = rights.is_unlimited  # may do everything to every topic
        self._granted: dict[Right, set[bytes]] = {right: set() for right in Right}

    def exists(self, name: str) -> bool:
        """True if there is a topic of that name. A caller that may not see it must not learn this."""
        return self._topics.has(name)

    def sees(self, name: str) -> bool:
        """True if the topic may be listed, or would be if it existed."""
        return self.is_unlimited or self._rights.sees(name)

    def has_somewhere(self, right: Right) -> bool:
        """True if the principal has `right` on any topic."""
        return self.is_unlimited or self._rights.allows_somewhere(right)

    @property
    def administers_everything(self) -> bool:
        """True if the principal has ADMIN on every topic: what belongs to other principals is its business too."""
        return self._rights.administers_everything

    def refuse_name(self, right: Right | None, name: str) -> WireError | None:
        """The error for using `right` (None: seeing) on a topic by name; None if it is allowed."""
        if self.is_unlimited or (self._rights.sees(name) if right is None else self._rights.allows(right, name)):
            return None
        return self._forbidden(right, name)

    def refuse_id(self, right: Right | None, topic_id: bytes) -> WireError | None:
        """As `refuse_name`, by id. An id that nobody has is refused too, unless the principal may do everything."""
        if self.is_unlimited or (right is not None and topic_id in self._granted[right]):
            return None
        try:
            name = self._topics.by_id(topic_id).name
        except UnknownTopicIdError as error:
            return error
        if not self._rights.sees(name):
            self.note_refused(self._forbidden(None, name))  # hidden from the caller, not from the audit trail
            return unknown_topic_id(topic_id)
        if right is not None and not self._rights.allows(right, name):
            return self._forbidden(right, name)
        if right is not None:
            self._remember(right, topic_id)
        return None

    def require_id(self, right: Right, topic_id: bytes) -> None:
        """Raises what `refuse_id` returns."""
        if self.is_unlimited or topic_id in self._granted[right]:
            return
        error = self.refuse_id(right, topic_id)
        if error is not None:
            self.note_refused(error)
            raise error

    @property
    def may_use_groups(self) -> bool:
        """True if there may be a group that the principal may use."""
        return self._rights.allows_groups

    def may_use_group(self, group_id: str) -> bool:
        """True if the principal may commit, read, list and delete the offsets of the group, whether there is one or not."""
        return self._rights.allows_group(group_id)

    def require_group(self, group_id: str) -> None:
        """Raises GroupAuthorizationFailedError for a group that the principal may not use, whether there is one or not."""
        if not self.may_use_group(group_id):
            error = GroupAuthorizationFailedError(
                f"principal '{self.principal}' may not use group {group_id!r}: the broker's auth.file says who may (groups)"
            )
            self.note_refused(error)
            raise error

    def note_refused(self, error: WireError) -> None:
        """Reports a refused request for the audit trail. An error for a topic that does not exist is not a refusal."""
        if self._on_refused is not None and isinstance(error, (TopicAuthorizationFailedError, GroupAuthorizationFailedError)):
            self._on_refused(self.principal, error)

    def owns_producer(self, producer_id: int) -> bool:
        """True if the principal may use that id."""
        return self._owners is None or self._owners.owns(self._tag, producer_id)

    def own_producer_id(self, producer_id: int) -> int:
        """The id that the principal gets for a newly assigned producer id: it carries the principal's tag."""
        return producer_id if self._owners is None else self._owners.given_to(self._tag, producer_id)

    def require_producer(self, producer_id: int) -> None:
        """Raises UnknownProducerIdError for an id that the principal may not use."""
        if self._owners is not None and not self._owners.owns(self._tag, producer_id):
            raise UnknownProducerIdError(
                f"producer id {producer_id} was not given to principal '{self.principal}', or that is forgotten: ask for another "
                "with InitProducerId",
                fate=Fate.NOT_APPENDED,
            )

    def _remember(self, right: Right, topic_id: bytes) -> None:
        granted = self._granted[right]
        if len(granted) >= _REMEMBERED_MAX:
            granted.clear()
        granted.add(topic_id)

    def _forbidden(self, right: Right | None, name: str) -> TopicAuthorizationFailedError:
        what = _VERBS[right]
        return TopicAuthorizationFailedError(
            f"principal '{self.principal}' may not {what} topic '{name}': the broker's auth.file says who may"
        )


def unknown_topic_id(topic_id: bytes) -> UnknownTopicIdError:
    """The error for an id that does not exist, as TopicStore.by_id has it; a test holds the two equal."""
    return UnknownTopicIdError(f"there is no topic with id {topic_id.hex()}: it was deleted, and perhaps recreated")
