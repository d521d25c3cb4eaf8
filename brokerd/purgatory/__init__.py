"""Waiting for a condition or a deadline, whichever comes first.

    timing_wheel.py  deadlines: insert and cancel in O(1)
    delayed.py       a delayed operation: completed exactly once
    purgatory.py     which operations wait for which event
    driver.py        the one part that touches the event loop: advances the wheel when a deadline is due

All but the driver are pure: they take `now_ms` (monotonic) and read no clock. The conditions (bytes of a partition, a high
watermark) are known to brokerd/server alone.
"""
