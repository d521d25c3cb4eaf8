"""Cluster: several real brokers and their coordination store for one test, each in a process of its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from types import MappingProxyType, TracebackType
from typing import Any

from brokerd.errors import BrokerdError, ConfigError
from brokerd.testing.broker import Broker, Clients, Handle, given_settings
from brokerd.testing.channel import BrokerFailedError
from brokerd.testing.warm_process import new_coordination

NAME = "testing"
_NODES_MAX = 16
_END_TIMEOUT_S = 10.0
_OF_ITS_OWN = ("node.id", "cluster.name", "coordination.servers", "port", "advertised.port", "data.dir")  # assigned to each node


class Cluster(Handle):
    """`nodes` brokers with the ids 1, 2, 3, ..., and a coordination store in memory beside them.

        with Cluster() as cluster:
            orders = cluster.create_topic("orders", partitions=6)
            cluster.kill(cluster.leader("orders", 0))

    `config` and keywords are settings of every node, by Kafka's names. Each node is a complete Broker:
    `cluster.nodes[2].kill_after("Produce")`. Data is in temporary directories: it survives kills, and `close` deletes it.

    The cluster ends with the block, with `close()`, or with the process that created it. All methods may be called from any thread.
    After a fork it belongs to the parent.
    """

    _KIND = "Cluster"
    _GONE = "the process of the coordination store is gone: was it killed?"

    def __init__(
        self,
        nodes: int = 3,
        config: Mapping[str, object] | None = None,
        *,
        client: Mapping[str, object] | None = None,
        **settings: object,
    ) -> None:
        """Validates the settings; `with` or `start()` starts the cluster. `client`: settings of the client that creates topics,
        appends and reads for the test, needed with TLS or authentication (`{"auth.token": ...}`). Raises ConfigError for an
        unknown setting or an invalid value."""
        if not isinstance(nodes, int) or isinstance(nodes, bool) or not 1 <= nodes <= _NODES_MAX:
            raise ConfigError(f"nodes is {nodes!r}: give a number from 1 to {_NODES_MAX}")
        self._settings = given_settings(config or {}, settings)
        for name in _OF_ITS_OWN:
            if name in self._settings:
                raise ConfigError(f"{name} is no setting of a testing Cluster: it gives each node its own")
        super().__init__(client or {})
        Broker(self._settings)  # raises ConfigError for settings that no node accepts
        self._node_ids = range(1, nodes + 1)
        self._ports: list[int] = []  # of the relays: one per node, and a last one that is never cut
        self._nodes: dict[int, Broker] = {}
        self._stack = ExitStack()

    # --- lifecycle

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if os.getpid() == self._owner_pid:
            self._stack.__exit__(kind, error, trace)

    def start(self) -> None:
        """Starts the coordination store and the nodes; returns once all of them serve and know each other. Raises BrokerFailedError
        with the node's log if one fails to start."""
        self._refuse_fork()
        if self._channel is not None or self._ports:
            raise BrokerdError("this Cluster was started before: make another")
        with ExitStack() as stack:
            self._channel = new_coordination()
            stack.callback(self._end_coordination)
            self._ports = self._ask({"do": "open", "names": [*map(str, self._node_ids), ""]})["ports"]
            for node_id, port in zip(self._node_ids, self._ports, strict=False):
                own = {"node.id": node_id, "cluster.name": NAME, "coordination.servers": f"etcd://127.0.0.1:{port}"}
                node = Broker({**self._settings, **own}, client=self._client_settings)
                stack.push(node)
                try:
                    node.start()
                except BrokerFailedError as error:
                    raise BrokerFailedError(f"node {node_id}: {error.message}") from None
                self._nodes[node_id] = node
            self._clients = Clients(self._new_client)
            stack.callback(self._clients.close)
            self._ask_client({"do": "wait_for_nodes", "nodes": [node.bootstrap_servers for node in self._nodes.values()]})
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Ends all processes and removes all data. Idempotent. Raises UnmetFaultError if a fault of a node met no request."""
        self.__exit__(None, None, None)

    # --- nodes

    def kill(self, node: int) -> None:
        """Kills a node (SIGKILL). The other nodes consider it alive until its lease ends (broker.session.timeout.ms, or
        `expire`); then nodes with in-sync replicas lead its partitions. `restart` starts it again."""
        self._node(node).kill()

    def restart(self, node: int) -> None:
        """Stops a node cleanly, unless it was killed, and starts it again on the same port and data."""
        self._node(node).restart()

    def pause(self, node: int) -> None:
        """Suspends a node (SIGSTOP): connections stay open, and requests get no response until `resume`. It keeps its
        leadership until its lease ends (broker.session.timeout.ms, or `expire`)."""
        self._node(node).pause()

    def resume(self, node: int) -> None:
        """Resumes a node after `pause`."""
        self._node(node).resume()

    def isolate(self, node: int) -> None:
        """Cuts a node off from the coordination store until `heal`: data is held back in both directions, without an error. Its
        lease ends after broker.session.timeout.ms, or with `expire`. Its connections to clients and other nodes stay intact."""
        self._ask({"do": "cut", "name": self._name(node)})

    def heal(self, node: int) -> None:
        """Ends `isolate`, and delivers the data that was held back."""
        self._ask({"do": "heal", "name": self._name(node)})

    def expire(self, node: int) -> None:
        """Ends a node's lease at once, as the store does after broker.session.timeout.ms of silence. A running node registers
        again."""
        self._ask({"do": "expire", "key": f"/brokerd/{NAME}/nodes/{self._name(node)}"})

    # --- coordination

    def stop_coordination(self) -> None:
        """Stops the coordination store. Its data is kept, and no lease ends while it is stopped."""
        self._ask({"do": "stop"})

    def start_coordination(self, *, is_empty: bool = False) -> None:
        """Starts the coordination store again after `stop_coordination`. `is_empty`: without its data."""
        self._ask({"do": "start", "is_empty": bool(is_empty)})

    # --- topics

    def leader(self, topic: str, partition: int) -> int:
        """The id of a partition's leader, as clients see it; -1 = none at present. Raises
        UnknownTopicOrPartitionError."""
        leader: int = self._told(topic, partition, "leaders")
        return leader

    def in_sync(self, topic: str, partition: int) -> list[int]:
        """The ids of the nodes with in-sync replicas of a partition, its leader included. Raises as `leader` does."""
        node_ids: list[int] = self._told(topic, partition, "in_sync")
        return node_ids

    def _told(self, topic: str, partition: int, what: str) -> Any:
        told: list[Any] = self._look_up(topic)[what]
        if not 0 <= partition < len(told):
            raise ConfigError(f"topic '{topic}' has no partition {partition!r}: it has 0 to {len(told) - 1}")
        return told[partition]

    # --- properties

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of all nodes, for `bootstrap.servers`."""
        self._opened()
        return ",".join(node.bootstrap_servers for node in self._nodes.values())

    @property
    def nodes(self) -> Mapping[int, Broker]:
        """The nodes by id, from 1 on."""
        self._opened()
        return MappingProxyType(self._nodes)

    @property
    def coordination(self) -> str:
        """The value of `coordination.servers` for a further node of this cluster, whose `cluster.name` is `testing`. `isolate` does
        not cut it."""
        self._opened()
        return f"etcd://127.0.0.1:{self._ports[-1]}"

    def __repr__(self) -> str:
        if self._channel is None:
            return f"<Cluster: {'closed' if self._ports else 'not started'}>"
        return f"<Cluster of {len(self._nodes)} nodes at {self.bootstrap_servers}>"

    # --- inside

    def _not_open(self) -> BrokerdError:
        if self._ports:
            return BrokerdError("this Cluster was closed, and its data is gone: make another")
        return BrokerdError("the cluster is not open: use it in `with Cluster() as cluster:`, or call start()")

    def _name(self, node: int) -> str:
        """A node's id as text. Raises ConfigError."""
        self._opened()
        if node not in self._nodes:
            raise ConfigError(f"there is no node {node!r}: this cluster has 1 to {len(self._nodes)}")
        return str(node)

    def _node(self, node: int) -> Broker:
        self._name(node)
        return self._nodes[node]

    def _new_client(self, end: socket.socket) -> None:
        """Starts a client as a child of the first node's keeper, which survives a kill of its broker."""
        self._nodes[1].add_client(end, {**self._client_settings, "bootstrap.servers": self.bootstrap_servers})

    def _end_coordination(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.end(_END_TIMEOUT_S)
