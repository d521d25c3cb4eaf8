"""A broker for the tests of your own pipeline: real, in a temporary directory, on a free port, and yours to break.

    from brokerd.testing import Broker, run_available

    with Broker() as broker:
        orders = broker.create_topic("orders", partitions=4)
        orders.append([("alice", "3 apples"), ("bob", "1 pear")])
        broker.kill_after("EndTransaction")
        run_available(my_job(broker.bootstrap_servers))

For those who write tests:

    broker.py          Broker: its life, its topics, its faults
    topic.py           Topic: append and rows
    queries.py         run_available: a streaming query, to the end of what is there
    plugin.py          the fixtures of pytest
    errors.py          the errors of this package alone

How it works (ARCHITECTURE.md says why): the process that uses it holds a few sockets, and neither threads nor gRPC. A warm process,
which has imported everything, forks for each broker a keeper, which forks the broker and the test's clients.

    warm_process.py    starts the warm process, and ends it
    forking.py         the warm process itself
    arguments.py       checks of all that a test gives
    clients.py         the test's own clients, one for each thread that calls
    keeper.py          the keeper: does what the test asks, and leaves nothing behind
    kept_broker.py     the broker that it keeps: started, killed, started again, on one port and directory
    broker_process.py  the broker, with faults in its files and calls
    client_process.py  a client that creates topics, appends and reads
    channel.py         messages between these processes
    kernel.py          processes that end with the one that needs them
    faults.py          faults: what to do at which request
    watched_calls.py   where a fault meets a call
    failing_files.py   a disk that fails
    records.py         rows, Arrow and DataFrames as columns of records, and back

Exports are imported on first use: a project that has brokerd installed and uses none of this pays nothing for the plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brokerd.testing.broker import Broker
    from brokerd.testing.errors import BrokerFailedError, UnmetFaultError
    from brokerd.testing.faults import Fault
    from brokerd.testing.queries import run_available
    from brokerd.testing.records import Record
    from brokerd.testing.topic import Topic

__all__ = ["Broker", "BrokerFailedError", "Fault", "Record", "Topic", "UnmetFaultError", "run_available"]

_MODULES = {
    "Broker": "broker",
    "BrokerFailedError": "errors",
    "Fault": "faults",
    "Record": "records",
    "Topic": "topic",
    "UnmetFaultError": "errors",
    "run_available": "queries",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'brokerd.testing' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
