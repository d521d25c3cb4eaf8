"""Waiting for a condition or a deadline, whichever comes first.

    timing_wheel.py  deadlines: insert and cancel in O(1)
    purgatory.py     delayed operations, each completed exactly once, and the waiters of one thing
    driver.py        a purgatory on the event loop: advances its wheel when a deadline is due

All but the driver are pure: they take `now_ms` (monotonic) and read no clock. The conditions (bytes of a partition, a high
watermark) are known to brokerd/server alone.
"""
