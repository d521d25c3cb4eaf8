"""Delayed operations: wait for a condition or a deadline, whichever comes first.

    timing_wheel.py  deadlines: insert and cancel in O(1)
    purgatory.py     delayed operations, each completed exactly once, and the waiters of each watched object
    driver.py        a purgatory on the event loop: advances its wheel when a deadline is due

Only the driver reads a clock; the other two take `now_ms` (monotonic). The conditions (bytes of a partition, a high watermark)
are defined in brokerd/server.
"""
