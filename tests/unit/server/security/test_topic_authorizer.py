"""Authorization of topics: grants are cached, refusals are not, and hidden and missing topics get the same answer."""

from __future__ import annotations

import tomllib

import pytest

from brokerd.datadir.topic_store import Topic, TopicStore
from brokerd.errors import Fate, TopicAuthorizationFailedError, UnknownProducerIdError, UnknownTopicIdError, WireError
from brokerd.server.security.credentials import parse_identities
from brokerd.server.security.topic_authorizer import Right, TopicAuthorizer, TopicRights
from tests.support.files import MemoryFiles
from tests.support.identities import AUTH_FILE
from tests.support.steps import run_here

PRINCIPALS = parse_identities(tomllib.loads(AUTH_FILE)).principals
READABLE, HIDDEN, MISSING = b"r" * 16, b"h" * 16, b"m" * 16


class CountingStore(TopicStore):
    """Topics; counts look-ups by id."""

    def __init__(self) -> None:
        super().__init__(MemoryFiles())
        self.lookups = 0

    def by_id(self, topic_id: bytes) -> Topic:
        self.lookups += 1
        return super().by_id(topic_id)


@pytest.fixture
def topics() -> CountingStore:
    store = CountingStore()
    for name, topic_id in (("clicks", READABLE), ("secret", HIDDEN)):
        run_here(store.put(Topic(name, topic_id, 1, {})))
    return store


def test_a_granted_id_is_looked_up_once(topics: CountingStore) -> None:
    authorizer = TopicAuthorizer(PRINCIPALS["reader"], topics)
    for _ in range(3):
        authorizer.require_id(Right.READ, READABLE)
    assert topics.lookups == 1
    for _ in range(2):
        with pytest.raises(TopicAuthorizationFailedError, match="principal 'reader' may not write to topic 'clicks'"):
            authorizer.require_id(Right.WRITE, READABLE)


def test_refusals_are_not_remembered(topics: CountingStore) -> None:
    authorizer = TopicAuthorizer(PRINCIPALS["reader"], topics)
    with pytest.raises(UnknownTopicIdError):
        authorizer.require_id(Right.READ, MISSING)
    run_here(topics.put(Topic("events-9", MISSING, 1, {})))
    authorizer.require_id(Right.READ, MISSING)


def test_the_boss_is_never_looked_up(topics: CountingStore) -> None:
    authorizer = TopicAuthorizer(PRINCIPALS["boss"], topics)
    for topic_id in (READABLE, HIDDEN, MISSING):
        authorizer.require_id(Right.ADMIN, topic_id)
    assert topics.lookups == 0


def test_a_hidden_id_is_a_missing_one_to_the_letter(topics: CountingStore) -> None:
    authorizer = TopicAuthorizer(PRINCIPALS["reader"], topics)
    for right in (None, *Right):
        told = []
        for topic_id in (HIDDEN, MISSING):
            with pytest.raises(UnknownTopicIdError) as refused:
                authorizer.require_id(right, topic_id)
            told.append(described(refused.value, topic_id))
        assert told[0] == told[1]
        assert right is None or not authorizer.allows_id(right, HIDDEN)


def described(error: WireError, topic_id: bytes) -> tuple[object, ...]:
    return type(error), error.message.replace(topic_id.hex(), "?"), error.fate


@pytest.mark.parametrize(
    ("patterns", "topic", "expected"),
    [
        (["events"], "events", True),
        (["events"], "events-1", False),
        (["events-*"], "events-1", True),
        (["events-*"], "events-", True),
        (["events-*"], "events", False),
        (["events-*"], "my-events-1", False),
        (["*"], "anything", True),
        ([], "anything", False),
        (["a.c"], "abc", False),
    ],
)
def test_patterns_are_names_and_prefixes(patterns: list[str], topic: str, expected: bool) -> None:
    rights = TopicRights({Right.READ: patterns})
    assert rights.allows(Right.READ, topic) is expected
    assert rights.sees(topic) is expected
    assert not rights.allows(Right.WRITE, topic)
    assert not rights.is_unlimited


def test_a_producer_id_of_somebody_else_is_unknown(topics: CountingStore) -> None:
    boss, writer = (TopicAuthorizer(PRINCIPALS[name], topics) for name in ("boss", "writer"))
    given = writer.own_producer_id(9)
    writer.require_producer(given)
    for authorizer, producer_id in ((boss, given), (writer, 9)):
        with pytest.raises(UnknownProducerIdError, match=f"was not issued to principal '{authorizer.principal}'") as caught:
            authorizer.require_producer(producer_id)
        assert caught.value.fate is Fate.NOT_APPENDED
