"""Producer and consumer for asyncio, which share the cores of the blocking ones.

    async with Producer(bootstrap_servers="127.0.0.1:9192") as producer:
        metadata = await producer.send_and_wait("events", b"hello")

Each has a thread for network and encoding, like its blocking counterpart; this package connects it to the tasks of one event
loop. No call blocks the loop's thread or starts a thread of its own.

Why not run the cores' I/O in the application's loop: encoding a batch or walking a response of 50 MB would stop that loop for
milliseconds, a blocked loop would let transactions and groups expire, and a loop that ends early would lose records already sent.
The price is one wake-up between threads for each real wait, some tens of microseconds; a call that finds room or data needs none.

- A task never waits while it holds a lock. It waits on a Waiter, signalled by `call_soon_threadsafe`. Calls that wait more than
  once are generators (brokerd/steps.py) driven by a thread or a task.
- `send` runs the blocking producer's code, which raises WouldBlockError instead of blocking the loop. Tasks without room queue by
  topic, and only the first waits for room, so a thousand waiting tasks cost the sender one wake-up.
- A task is cancelled only where it awaits, and holds no records there: they are taken, and positions moved, in one step afterwards.
  `close`, and the end of a transaction's member, continue without their caller.
- Calls that never wait still yield: each `poll`, and every hundredth record of an iteration or `send`.

consumer.py     Consumer
producer.py     Producer: the blocking one, raising WouldBlockError instead of waiting; Transaction; queues of waiting tasks
turns.py        one event loop, one task at a time; waits for arrivals
"""

from __future__ import annotations

from brokerd.aio.consumer import Consumer
from brokerd.aio.producer import Producer, Transaction

__all__ = ["Consumer", "Producer", "Transaction"]
