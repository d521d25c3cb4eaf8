"""Waiting for a condition or a deadline, whichever comes first.

    timing_wheel.py  deadlines: insert and cancel in O(1)
    delayed.py       one operation that waits: completed exactly once
    purgatory.py     which operations wait for which event
    driver.py        the one part that touches the event loop: advances the wheel when a deadline is due

All but the driver are pure: they take `now_ms` (monotonic) and read no clock. What is waited for (bytes of a
partition, a high watermark) is known to brokerd/server alone.
"""
