"""Goal: a cluster counts as ready once every node knows all others, so a test may send its first request to any node."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any, Self

import pytest

from brokerd.testing import client_process
from brokerd.testing.channel import Channel, exchange


def test_a_cluster_is_ready_once_each_node_knows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"a:1": 3, "b:2": 1, "c:3": 2}  # number of nodes that each node knows
    asked: list[str] = []

    class Client:
        def __init__(self, config: Any) -> None:
            self._address = config.bootstrap_servers

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def describe_cluster(self, _names: list[str]) -> Any:
            asked.append(self._address)
            known[self._address] += 1  # the node learns of another one
            return SimpleNamespace(nodes=range(known[self._address] - 1))

    monkeypatch.setattr(client_process, "BlockingClient", Client)
    ours, theirs = socket.socketpair()
    server = threading.Thread(target=client_process.serve_client, args=(Channel(theirs), {}))
    server.start()
    channel = Channel(ours)
    exchange(channel, {"do": "wait_for_nodes", "nodes": list(known)}, b"", None, "gone")
    channel.close()
    server.join()
    theirs.close()
    assert asked == ["a:1", "b:2", "b:2", "b:2", "c:3", "c:3"]
