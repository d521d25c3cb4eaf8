"""A client's connection to one node, by itself."""

from __future__ import annotations

from brokerd.client.connection import Connection, Silence
from brokerd.client.security import ClientSecurity
from brokerd.config.client import ClientConfig
from tests.support.wait import DEADLINE_S


def connection_to(address: str) -> Connection:
    """A connection in plaintext, with nobody to look after it."""

    async def look_into(_address: str, _waiting: object) -> None:
        """Leaves it to the test."""

    return Connection(address, ClientSecurity(ClientConfig()), lambda: None, Silence(int(DEADLINE_S * 1_000), look_into))
