"""A broker for the tests of your own pipeline: real, in a temporary directory, on a free port, and yours to break.

    from brokerd.testing import Broker, run_available

    with Broker() as broker:
        orders = broker.create_topic("orders", partitions=4)
        orders.append([("alice", "3 apples"), ("bob", "1 pear")])
        broker.kill_after("EndTransaction")
        run_available(my_job(broker.bootstrap_servers))

For those who write tests:

    broker.py          Broker: its life, its topics, its faults
    topic.py           Topic: append and rows (records.py: rows, Arrow and DataFrames as columns of records, and back)
    queries.py         run_available: a streaming query, to the end of the available data
    plugin.py          the fixtures of pytest

How it works: the test's process holds a few sockets, and neither threads nor gRPC. A warm process, which has imported everything,
forks a keeper for each broker, which forks the broker and the test's clients:

    the test's process ══ socket pairs ══ warm process      one thread, never touches gRPC
                       ══════════════════ ├─ keeper         one a broker, one thread: starts it, kills it, clears up
                       ══════════════════    ├─ clients     gRPC: create topics, append, read; one for each thread that calls
                                             └─ broker      gRPC: the daemon of `brokerd start`, over Files that can fail

- Ready in 300 ms: an interpreter and its imports take longer, so they are paid once, by the warm process.
- `kill` is a real SIGKILL and `pause` a real SIGSTOP, which a thread of the test's process could not receive alone.
- It works beside Spark, multiprocessing, pytest-xdist and Spark Connect in any order: the test's process gets neither gRPC nor
  threads from it, so its forks stay sound. Only processes of one thread without gRPC fork here. The warm process is started by
  exec, so it does not matter what the test's process holds.
- Nothing is left, however the test ends. The warm process and the keepers watch the test's process by a pidfd: a socket's end does
  not arrive while a fork of that process holds a copy. Broker and clients have the keeper's end as their parent-death signal.
  `close` reads until the keeper's end, which comes last.
- The keeper holds the port with a socket that is bound and does not listen, so a restarted broker gets its port back.
- A call that waits, on a full disk or a paused broker, holds up no other thread: each takes a free client, or has one made, up to
  a limit.
- Faults that meet a request happen in the broker's process, between request and response, so "after the commit, before the
  response" is a moment and not a race. A lost response ends its call with UNAVAILABLE, as a lost connection does.
- Temporary data is not synced: a kill takes nothing from the page cache, and tests side by side would wait for each other's disk.
  With `data.dir` everything is synced.
- Messages between these processes are JSON and Arrow, and an error is its class's name and text. Nothing is unpickled.

    warm_process.py    the warm process
    keeper.py          the keeper, and the broker that it keeps
    broker_process.py  the broker, with faults in its files and calls
    client_process.py  a client that creates topics, appends and reads
    faults.py          faults: which request, and then what; a disk that fails
    channel.py         messages between these processes
    processes.py       processes that end with the one that needs them

Exports are imported on first use: a project that has brokerd installed and uses none of this pays nothing for the plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokerd.testing.broker import Broker
    from brokerd.testing.channel import BrokerFailedError, UnmetFaultError
    from brokerd.testing.faults import Fault
    from brokerd.testing.queries import run_available
    from brokerd.testing.records import Record
    from brokerd.testing.topic import Topic

__all__ = ["Broker", "BrokerFailedError", "Fault", "Record", "Topic", "UnmetFaultError", "run_available"]

_MODULES = {
    "Broker": "broker",
    "BrokerFailedError": "channel",
    "Fault": "faults",
    "Record": "records",
    "Topic": "topic",
    "UnmetFaultError": "channel",
    "run_available": "queries",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'brokerd.testing' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
