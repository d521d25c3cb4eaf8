"""Delayed operations: wait for a condition or a deadline, whichever comes first.

    timing_wheel.py  deadlines: insert and cancel in O(1)
    purgatory.py     delayed operations, each completed exactly once, and the waiters of each watched object; on the event loop

Only TimedPurgatory reads a clock; all else takes `now_ms` (monotonic). The conditions (bytes of a partition, a high watermark) are
defined in brokerd/server.
"""
