"""The data of an open transaction in one partition."""

from __future__ import annotations

from typing import NamedTuple


class OpenData(NamedTuple):
    """The records of one member, counted modulo 2^31 as sequences are. They lie from `first_offset` up to, not including,
    `end_offset`, among those of other producers. `is_durable`: all in-sync replicas have them durably.
    """

    records: int
    first_offset: int
    end_offset: int
    is_durable: bool
