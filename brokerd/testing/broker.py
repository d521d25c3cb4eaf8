"""Broker: a real broker for one test. The broker and its clients run in other processes; the test's process holds only sockets.

Topic appends a test's rows, and reads what a pipeline wrote. Handle is the base of Broker and Cluster."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from queue import LifoQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from brokerd import process
from brokerd.config.broker import BrokerConfig, check_broker
from brokerd.config.client import ClientConfig
from brokerd.config.settings import INT32_MAX, from_mapping
from brokerd.errors import BrokerdError, ClientError, ConfigError
from brokerd.testing.channel import Channel, Message, UnmetFaultError, exchange, pair
from brokerd.testing.faults import AFTER, BEFORE, KILL, LOSE, Fault
from brokerd.testing.warm_process import new_keeper

if TYPE_CHECKING:
    import pyarrow as pa

    from brokerd.testing.records import Record

READ_COMMITTED = "read_committed"
_END_TIMEOUT_S = 120.0
CLIENTS_MAX = 16
_CLIENT_GONE = "the process of the test's own client is gone: was it killed?"


class Clients:
    """The clients of one broker or cluster. All methods may be called from any thread."""

    def __init__(self, introduce: Callable[[socket.socket], object]) -> None:
        """`introduce` starts a client that serves this end of a socket pair."""
        self._introduce = introduce
        self._idle: LifoQueue[Channel | None] = LifoQueue()  # None: a client that may be started
        for _ in range(CLIENTS_MAX):
            self._idle.put(None)
        self._is_closed = False

    def ask(self, head: dict[str, Any], body: Any = b"") -> Message:
        """Sends a command to an idle client; waits while all CLIENTS_MAX are busy. Raises the client's errors."""
        client = self._idle.get()
        try:
            client = client or self._new()
            return exchange(client, head, body, None, _CLIENT_GONE)
        finally:
            if client is not None and (client.is_broken or self._is_closed):
                client.close()
                client = None
            self._idle.put(client)

    def _new(self) -> Channel:
        client, theirs = pair()
        try:
            with theirs:
                self._introduce(theirs)
        except BaseException:
            client.close()
            raise
        return client

    def close(self) -> None:
        """Ends idle clients now, and busy ones after their calls. In a forked child, closes its copies of the sockets."""
        self._is_closed = True
        for client in self._idle.queue:
            if client is not None:
                client.close()


class Topic:
    """A topic of a Broker, from `Broker.create_topic` or `Broker.topic`."""

    def __init__(self, name: str, ask: Callable[..., Message]) -> None:
        self.name = name
        self._ask = ask

    def append(self, rows: Iterable[object] | pa.Table | pa.RecordBatch | Any) -> None:
        """Appends rows, in order within each partition; returns once they are durable.

        `rows`: an iterable of values (bytes or text), of pairs (key, value), or of mappings with `key`, `value`, `headers`,
        `timestamp` (datetime, or ms since 1970) and `partition`; or a table with these columns: Arrow's, or a DataFrame of Spark,
        pandas or Polars. Text is encoded as UTF-8. Unless the row names a partition, the key's hash chooses it, as in Kafka's
        default partitioner.

        Raises TypeError and ValueError for rows that are not records, and the producer's errors: BrokerUnreachableError,
        DeliveryTimeoutError, MessageTooLargeError, UnknownTopicOrPartitionError.
        """
        import pyarrow as pa

        from brokerd.testing.records import to_table

        table = to_table(rows)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        self._ask({"do": "append", "topic": self.name}, sink.getvalue())

    def rows(self, isolation_level: str = READ_COMMITTED) -> list[Record]:
        """All records visible to a reader now, by partition and offset. `read_uncommitted` includes those of open and aborted
        transactions. Raises the reader's errors: BrokerUnreachableError, LogDamagedError, UnknownTopicOrPartitionError.
        """
        from brokerd.testing.records import to_records

        return to_records(self.arrow(isolation_level), self.name)

    def arrow(self, isolation_level: str = READ_COMMITTED) -> pa.Table:
        """Like `rows`, as a table with the columns key, value, headers, timestamp, partition, offset, timestampType."""
        import pyarrow as pa

        from brokerd.testing.records import empty_table

        body = self._ask({"do": "rows", "topic": self.name, "isolation_level": isolation_level}).body
        return pa.ipc.open_stream(pa.py_buffer(body)).read_all() if body else empty_table()

    def __repr__(self) -> str:
        return f"<Topic '{self.name}'>"


class Handle(ABC):
    """Base of Broker and Cluster: processes that serve one test, over sockets owned by the process that created the Handle."""

    _KIND: ClassVar[str]  # its name in errors
    _GONE: ClassVar[str]  # the error if the process that serves its commands is gone

    def __init__(self, client: object) -> None:
        """`client`: settings of the test's own client. Raises ConfigError for an unknown setting or an invalid value."""
        self._client_settings = _plain(_by_name("client", client))
        if "bootstrap.servers" in self._client_settings:
            raise ConfigError("bootstrap.servers is no setting of a testing Broker's client: it is the Broker's own address")
        from_mapping(ClientConfig, self._client_settings, where="(setting of a testing Broker's client)")
        self._owner_pid = os.getpid()
        self._lock = threading.Lock()
        self._channel: Channel | None = None  # to the process that serves commands
        self._clients = Clients(self._new_client)
        _made.add(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    @abstractmethod
    def start(self) -> None:
        """Starts its processes."""

    def create_topic(
        self, name: str, partitions: int = 0, configs: Mapping[str, str] | None = None, replication_factor: int = 0
    ) -> Topic:
        """Creates a topic, whose partitions are spread over the nodes of a Cluster. `partitions` 0 = the broker's num.partitions
        (1); `configs` by Kafka's names (`retention.ms`); `replication_factor` 0 = the broker's default.replication.factor (1), and
        a single Broker accepts only 1. Raises TopicAlreadyExistsError, InvalidTopicError, InvalidPartitionsError,
        InvalidReplicationFactorError, InvalidConfigError, and with a Cluster NotReadyError."""
        _text("name", name)
        counts = {"partitions": partitions, "replication_factor": replication_factor}
        for field, count in counts.items():
            _whole_number(field, count)
        texts = {setting: str(value) for setting, value in _by_name("configs", configs or {}).items()}
        self._ask_client({"do": "create_topic", "topic": name, **counts, "configs": texts})
        return Topic(name, self._ask_client)

    def topic(self, name: str) -> Topic:
        """An existing topic. Raises UnknownTopicOrPartitionError."""
        self._look_up(name)
        return Topic(name, self._ask_client)

    def _look_up(self, name: str) -> dict[str, Any]:
        """The leaders and in-sync replicas of a topic's partitions. Raises ConfigError, UnknownTopicOrPartitionError."""
        return self._ask_client({"do": "look_up", "topic": _text("name", name)}).head

    def leave_to_parent(self) -> None:
        """Closes a forked child's copies of the sockets."""
        self._clients.close()
        if self._channel is not None:
            self._channel.close()

    def _refuse_fork(self) -> None:
        """Raises ClientError in a forked child, which would read the parent's responses. Call it before taking a lock, which
        another thread may have held at the fork."""
        if os.getpid() != self._owner_pid:
            raise ClientError(f"this {self._KIND} was made before this process was forked: use it in the process that made it")

    def _opened(self) -> Channel:
        self._refuse_fork()
        if self._channel is None:
            raise self._not_open()
        return self._channel

    @abstractmethod
    def _not_open(self) -> BrokerdError:
        """The error of a call before `start` or after `close`."""

    def _ask(self, head: dict[str, Any], passed: socket.socket | None = None) -> dict[str, Any]:
        """Sends a command; returns its reply. Raises the command's error; BrokerFailedError if the serving process is gone."""
        self._refuse_fork()
        with self._lock:
            return exchange(self._opened(), head, b"", passed, self._GONE).head

    def _ask_client(self, head: dict[str, Any], body: Any = b"") -> Message:
        self._opened()
        return self._clients.ask(head, body)

    @abstractmethod
    def _new_client(self, end: socket.socket) -> None:
        """Starts a client that serves this end of a socket pair."""


class Broker(Handle):
    """A broker in a temporary directory, on a free port of 127.0.0.1, in a process of its own.

        with Broker() as broker:
            topic = broker.create_topic("events", partitions=4)

    `config` and keywords are the broker's settings, by Kafka's names (`{"num.partitions": 4}`, `num_partitions=4`). With `data.dir`
    the data is kept there and closed cleanly. Otherwise it survives kills but no power failure, and `close` deletes it.

    The broker ends with the block, with `close()`, or with the process that created it. All methods may be called from any thread.
    After a fork it belongs to the parent.
    """

    _KIND = "Broker"
    _GONE = "the process that keeps the broker is gone: was it killed?"

    def __init__(
        self, config: Mapping[str, object] | None = None, *, client: Mapping[str, object] | None = None, **settings: object
    ) -> None:
        """Validates the settings; `with` or `start()` starts the broker. `client`: settings of the client that creates topics,
        appends and reads for the test, needed with TLS or authentication (`{"auth.token": ...}`). Raises ConfigError for an
        unknown setting or an invalid value."""
        given = given_settings(config or {}, settings)
        check_broker(from_mapping(BrokerConfig, given, where="(setting of a testing Broker)"))
        self._settings = _plain(given)
        self._faults: list[Fault] = []
        self._directory = ""
        self._address = ""
        super().__init__(client or {})

    # --- lifecycle

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close(is_checked=kind is None)

    def start(self) -> None:
        """Starts the broker, also after `kill`; returns once it serves. Raises BrokerFailedError with its directory and log if it
        fails to start."""
        if self._channel is not None:
            self._ask({"do": "start"})
            return
        self._refuse_fork()
        if self._address:
            raise self._not_open()
        self._channel, self._clients = new_keeper(), Clients(self._new_client)
        try:
            places = {"temporary": tempfile.gettempdir(), "current": os.path.abspath(".")}
            opened = self._ask({"do": "open", "settings": self._settings, **places})
        except BaseException:
            self._close(is_checked=False)
            raise
        self._directory, self._address = opened["directory"], opened["address"]

    def restart(self) -> None:
        """Stops the broker cleanly, unless it was killed, and starts it again on the same port and data."""
        self._ask({"do": "restart"})

    def kill(self) -> None:
        """Kills the broker (SIGKILL). `start` or `restart` starts it again."""
        self._ask({"do": "kill"})

    def pause(self) -> None:
        """Suspends the broker (SIGSTOP): connections stay open, and requests get no response until `resume`."""
        self._ask({"do": "pause"})

    def resume(self) -> None:
        """Resumes the broker after `pause`."""
        self._ask({"do": "resume"})

    def close(self) -> None:
        """Ends the broker and removes its directory. Idempotent. Raises UnmetFaultError if a fault met no request."""
        self._close(is_checked=True)

    # --- request faults

    def kill_before(self, request: str, *, nth: int = 1) -> Fault:
        """Kills the broker before it handles the `nth` request of this name from now on; it restarts at once.

        `request`: Produce, Fetch, EndTransaction (a commit or an abort), InitProducerId, ListOffsets, Metadata or another request
        of the protocol, from any client, including the test's own. Raises ConfigError for an unknown name.
        """
        return self._arm(KILL, request, BEFORE, nth)

    def kill_after(self, request: str, *, nth: int = 1) -> Fault:
        """Like `kill_before`, but after the request is handled and before its response is sent."""
        return self._arm(KILL, request, AFTER, nth)

    def lose_response(self, request: str, *, nth: int = 1) -> Fault:
        """Handles the request and loses its response, as with a lost connection; the broker keeps running."""
        return self._arm(LOSE, request, AFTER, nth)

    # --- disk faults

    def fail_disk(self, how: str = "full") -> None:
        """Makes the broker's disk fail until `heal_disk`: `full` (no file can grow), `write`, `sync` (fdatasync fails) or `read`.
        After `sync` and `write` a log may refuse appends until `restart`. A producer reports the failure only after its
        delivery.timeout.ms. Raises ConfigError for any other value."""
        if not _text("how", how):
            raise ConfigError("how must say how the disk fails: full, write, sync or read; heal_disk() has it work again")
        self._ask({"do": "disk", "how": how})

    def heal_disk(self) -> None:
        """Ends the disk fault."""
        self._ask({"do": "disk", "how": ""})

    # --- properties

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT, for `bootstrap.servers`."""
        self._opened()
        return self._address

    @property
    def directory(self) -> Path:
        """The broker's temporary directory."""
        self._opened()
        return Path(self._directory)

    @property
    def pid(self) -> int:
        """The broker's process id, which changes with each start. Raises BrokerFailedError if it is not running."""
        return int(self._ask({"do": "status"})["pid"])

    @property
    def log(self) -> str:
        """The broker's log so far."""
        return (self.directory / "broker.log").read_text("utf-8", "replace")

    def __repr__(self) -> str:
        if self._channel is None:
            return f"<Broker: {'closed' if self._address else 'not started'}>"
        return f"<Broker at {self._address}>"

    # --- inside

    def add_client(self, end: socket.socket, settings: Mapping[str, object]) -> None:
        """Starts a client that serves this end of a socket pair; it ends with this Broker. `settings`: the client's;
        bootstrap.servers defaults to this Broker."""
        self._ask({"do": "client", "settings": dict(settings)}, end)

    def _not_open(self) -> BrokerdError:
        if not self._address:
            return BrokerdError("the broker is not open: use it in `with Broker() as broker:`, or call start()")
        if "data.dir" in self._settings:
            return BrokerdError(f"this Broker was closed: make another; its data is in {self._settings['data.dir']}")
        return BrokerdError("this Broker was closed, and its data is gone: make another")

    def _ask_client(self, head: dict[str, Any], body: Any = b"") -> Message:
        self._ask({"do": "status"})  # fails at once if no broker runs; the client would wait for its time-outs
        return super()._ask_client(head, body)

    def _new_client(self, end: socket.socket) -> None:
        self.add_client(end, self._client_settings)

    def _arm(self, kind: str, request: str, moment: str, nth: int) -> Fault:
        _text("request", request)
        _whole_number("nth", nth)
        armed = self._ask({"do": "arm", "kind": kind, "request": request, "moment": moment, "nth": nth})
        fault = Fault(armed["number"], armed["text"], self._left_by_number)
        self._faults.append(fault)
        return fault

    def _left_by_number(self) -> dict[int, int]:
        return {int(number): left for number, left in self._ask({"do": "faults"})["left"].items()}

    def _close(self, *, is_checked: bool) -> None:
        keeper = self._channel
        if keeper is None or os.getpid() != self._owner_pid:
            return
        unmet: list[str] = []
        try:
            if is_checked and self._faults and not keeper.is_broken:
                left = self._left_by_number()
                unmet = [str(fault) for fault in self._faults if left.get(fault.number)]
        finally:
            self._channel, self._faults = None, []
            self._clients.close()
            keeper.end(_END_TIMEOUT_S)
        if unmet:
            raise UnmetFaultError(f"no request came for a fault that the test has ordered: {'; '.join(unmet)}")


def given_settings(config: object, keywords: Mapping[str, object]) -> dict[str, object]:
    """Settings by name, from a mapping and keywords (`num_partitions`). Raises ConfigError."""
    return {**_by_name("config", config), **{name.replace("_", "."): value for name, value in keywords.items()}}


def _plain(given: Mapping[str, object]) -> dict[str, object]:
    """Converts values to types that JSON can carry."""
    return {name: value if isinstance(value, (int, float, bool)) else str(value) for name, value in given.items()}


def _text(name: str, given: object) -> str:
    """Returns `given` if it is a str. Raises ConfigError."""
    if not isinstance(given, str):
        raise ConfigError(f"{name} is {given!r}: give it as a str")
    return given


def _whole_number(name: str, given: object) -> int:
    """Returns `given` if it is an int that fits the wire; the broker checks its range. Raises ConfigError."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise ConfigError(f"{name} is {given!r}: give it as an int")
    if abs(given) > INT32_MAX:
        raise ConfigError(f"{name} is {given}: give at most {INT32_MAX}")
    return given


def _by_name(name: str, given: object) -> dict[str, object]:
    """Returns `given` as a dict if it is a mapping with str keys. Raises ConfigError."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name} is {given!r}: give a mapping of settings' names and values")
    return {_text(f"the name of a setting in {name}", one): value for one, value in given.items()}


_made: weakref.WeakSet[Handle] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for one in _made:
        one.leave_to_parent()


process.in_forked_child(_leave_to_parent)
