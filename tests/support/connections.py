"""A single connection of a client to one node."""

from __future__ import annotations

from brokerd.client.connection import Connection, Silence
from brokerd.client.security import ClientSecurity
from brokerd.config.client import ClientConfig
from tests.support.wait import DEADLINE_S


def connection_to(address: str) -> Connection:
    """A plaintext connection."""

    async def look_into(_address: str, _waiting: object) -> None:
        """Ignores a silent connection: tests handle it."""

    return Connection(address, ClientSecurity(ClientConfig()), lambda: None, Silence(int(DEADLINE_S * 1_000), look_into))
