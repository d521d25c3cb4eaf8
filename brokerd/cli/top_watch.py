"""Looks at a broker again and again, for `brokerd top`: what it answers becomes screens, and so does that it does not answer."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.cli.top_model import Look, Screen, Tables, tables_of
from brokerd.client.blocking import BlockingClient
from brokerd.clock import Clock
from brokerd.errors import BrokerdError, UnknownGroupError, WireError

GROUPS_MAX = 50  # each costs a call


def look(client: BlockingClient, clock: Clock) -> Look:
    """Asks for everything that is shown. Raises BrokerdError."""
    server = client.server_info()
    topics = tuple(one for one in client.describe_topics().values() if not isinstance(one, WireError))
    listed = sorted(client.list_groups(), key=lambda one: -one.commit_timestamp)
    groups = []
    for listing in listed[:GROUPS_MAX]:
        try:
            groups.append(client.describe_group(listing.group_id))
        except UnknownGroupError:
            continue  # deleted since it was listed
    transactions = tuple(one for one in client.list_transactions() if one.state != "empty")
    return Look(
        monotonic_ms=clock.monotonic_ms(),
        wall_ms=clock.wall_ms(),
        version=server.software_version,
        cluster_id=server.cluster_id,
        topics=topics,
        groups=tuple(groups),
        group_count=len(listed),
        transactions=transactions,
    )


class Watch:
    """Turns looks into screens."""

    def __init__(self, take: Callable[[], Look], clock: Clock) -> None:
        self._take = take
        self._clock = clock
        self._before: Look | None = None
        self._tables: Tables | None = None
        self._unreachable_since_ms: int | None = None

    def next_screen(self) -> Screen:
        """Looks once. A broker that does not answer as it should is unreachable since its first failure; its last answer stays, and
        rates begin again."""
        began_ms = self._clock.wall_ms()
        try:
            now = self._take()
        except BrokerdError as error:
            self._before = None
            if self._unreachable_since_ms is None:
                self._unreachable_since_ms = began_ms
            return Screen(self._tables, self._clock.wall_ms(), self._unreachable_since_ms, error.message)
        self._tables = tables_of(self._before, now)
        self._before, self._unreachable_since_ms = now, None
        return Screen(self._tables, self._clock.wall_ms())
