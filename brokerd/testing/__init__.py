"""A real broker for the tests of your pipeline, in a temporary directory and on a free port, with fault injection.

    from brokerd.testing import Broker, run_available

    with Broker() as broker:
        orders = broker.create_topic("orders", partitions=4)
        orders.append([("alice", "3 apples"), ("bob", "1 pear")])
        broker.kill_after("EndTransaction")
        run_available(my_job(broker.bootstrap_servers))

The API for tests:

    broker.py          Broker: lifecycle, topics, faults. Topic: append and rows. Handle: the base of Broker and Cluster
    cluster.py         Cluster: several Brokers and their coordination store
    records.py         converts rows, Arrow data and DataFrames to and from records
    queries.py         run_available: runs a streaming query to the end of the available data
    plugin.py          the pytest fixtures

The test's process holds only a few sockets: no threads, no gRPC. A warm process, which has imported everything, forks a keeper
for each broker, which forks the broker and the test's clients:

    the test's process ══ socket pairs ══ warm process      one thread, never touches gRPC
                       ══════════════════ ├─ keeper         one per broker, one thread: starts, kills and cleans up
                       ══════════════════ │  ├─ clients     gRPC: create topics, append, read; one per concurrent call
                                          │  └─ broker      gRPC: the daemon of `brokerd start`, over Files that can fail
                       ══════════════════ └─ coordination   gRPC: one per Cluster, an etcd in memory behind relays that can be cut

- A broker is ready in 300 ms. An interpreter and its imports take longer, so only the warm process pays for them, once.
- `kill` is a real SIGKILL and `pause` a real SIGSTOP, neither of which can be sent to a single thread of the test's process.
- Spark, multiprocessing, pytest-xdist and Spark Connect may be used beside it in any order: the test's process gets neither gRPC
  nor threads from it, so it stays safe to fork. Only single-threaded processes without gRPC fork here. The warm process is started
  by exec, so the state of the test's process does not matter.
- All processes are cleaned up, however the test ends. Warm process, keepers and coordination watch the test's process by a pidfd,
  because a socket reports no EOF while a fork of that process holds a copy. The broker and the clients get a parent-death signal
  when the keeper ends. `close` reads until the keeper's EOF, which comes last.
- The keeper reserves the port with a socket that is bound but does not listen, so a restarted broker gets its port back.
- A call that blocks, on a full disk or a paused broker, blocks no other thread: each call takes an idle client or a new one, up to
  a limit.
- Request faults happen in the broker's process, between request and response, so "after the commit, before the response" is
  deterministic. A lost response ends its call with UNAVAILABLE, as a lost connection does.
- Temporary data is not synced: a kill does not lose the page cache, and parallel tests would contend for the disk. With
  `data.dir` everything is synced.
- Messages between these processes are JSON and Arrow; an error is its class name and text. Nothing is unpickled.

    warm_process.py    the warm process
    keeper.py          the keeper and its broker
    broker_process.py  the broker, with faults in its files and calls
    client_process.py  a client that creates topics, appends and reads
    coordination.py    the process of a cluster's coordination store
    memory_etcd.py     the store itself
    faults.py          request faults and disk faults
    channel.py         messages between these processes
    processes.py       forking, and processes that end with another one

Exports are imported on first use, so that the plugin costs nothing in projects that do not use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokerd.testing.broker import Broker, Topic
    from brokerd.testing.channel import BrokerFailedError, UnmetFaultError
    from brokerd.testing.cluster import Cluster
    from brokerd.testing.faults import Fault
    from brokerd.testing.queries import run_available
    from brokerd.testing.records import Record

__all__ = ["Broker", "BrokerFailedError", "Cluster", "Fault", "Record", "Topic", "UnmetFaultError", "run_available"]

_MODULES = {
    "Broker": "broker",
    "BrokerFailedError": "channel",
    "Cluster": "cluster",
    "Fault": "faults",
    "Record": "records",
    "Topic": "broker",
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
