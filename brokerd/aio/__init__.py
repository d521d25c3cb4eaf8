"""Producer and consumer for asyncio: the cores of the blocking ones, and no second implementation of what they decide.

    async with Producer(bootstrap_servers="127.0.0.1:9192") as producer:
        metadata = await producer.send_and_wait("events", b"hello")

Each has its thread for network and encoding, as the blocking one has; this package is the way between it and the tasks of one event
loop. No call waits in the loop's thread, and none has a thread of its own.

Why not run the cores' I/O in the application's loop: encoding a batch or walking a response of 50 MB would stop that loop for
milliseconds, a blocked loop would let transactions and groups expire, and a loop that ends early would lose records already sent.
The price is one wake-up between threads for each real wait, some tens of microseconds; a call that finds room or data needs none.

- A task never waits inside a lock. It waits on a Waiter, told by `call_soon_threadsafe`; calls that wait more than once are
  generators (brokerd/steps.py) that a thread or a task drives.
- `send` runs the blocking producer's code, which raises WouldBlockError instead of blocking the loop. Tasks without room queue by
  topic, and only the first waits for room, so a thousand waiting tasks cost the sender one wake-up.
- Cancellation strikes a task where it awaits, and there it holds nothing: records are taken and positions moved in one step
  afterwards. `close`, and the end of a transaction's member, continue without their caller.
- Calls that never wait still yield: each `poll`, and each hundredth record of an iteration or a `send`.

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
