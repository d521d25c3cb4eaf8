"""Transactions: one per version of a transactional id. It has many members, and a single commit decides them all.

    transactional_id.py  one transactional id: the table of answers
    coordinator.py       all transactional ids: owners, limits, expiry, decisions, state rebuilt from the log
    markers.py           the control record of each partition; the outcome of members whose control record is lost
    pages.py             decisions split over several requests
    records.py           the records of the transaction log
    snapshot.py          snapshots of the coordinator's state, written to the log in pieces
    loading.py           rebuilds the state by reading the log from its start

All of it is pure: messages in, decisions out. Requests and events are the protobuf messages of the wire and the log (proto/), and
are immutable once recorded. A decision changes no state; `TransactionCoordinator.apply` does, for an event whose record is in the
log. The server enforces the order of durability: a member before its response, a commit before its markers, the markers before the
response, the end of members before the markers that void their data.
"""
