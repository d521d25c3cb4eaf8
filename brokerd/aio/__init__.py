"""Producer and consumer for asyncio: the cores of the blocking ones, and no second implementation of what they decide.

    async with Producer(bootstrap_servers="127.0.0.1:9192") as producer:
        metadata = await producer.send_and_wait("events", b"hello")

Each has its thread for network and encoding, as the blocking one has; this package is the way between it and the tasks of one event
loop. No call waits in the loop's thread, and none has a thread of its own.

consumer.py     Consumer
producer.py     Producer
engine.py       the blocking producer, which says what it would wait for
lines.py        tasks that wait for room, in their order
transaction.py  `async with producer.transaction()`
coordinator.py  the calls that decide a transaction
guard.py        one task at a time
waiting.py      the outcome of work that another thread does; arrivals
home.py         the event loop that a client belongs to
"""

from __future__ import annotations

from brokerd.aio.consumer import Consumer
from brokerd.aio.producer import Producer
from brokerd.aio.transaction import Transaction

__all__ = ["Consumer", "Producer", "Transaction"]
