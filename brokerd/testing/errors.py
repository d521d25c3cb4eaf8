"""The errors of this package alone; all others are those of brokerd/errors.py, as a client raises them."""

from __future__ import annotations

from brokerd.errors import BrokerdError


class BrokerFailedError(BrokerdError):
    """The broker did not start, or ended by itself; the text names its directory and shows the end of its log."""


class UnmetFaultError(BrokerdError, AssertionError):
    """A fault that was ordered met no request until the broker was closed: the test has not shown what it was written for."""
