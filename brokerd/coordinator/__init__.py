"""The coordinator's rules for transactions and for the offsets that groups commit, which share one log. A transaction is a version
of a transactional id; it has many members, and a single commit decides them all. Groups have no members yet: the last commit wins.

    transactional_id.py         one transactional id: the table of answers
    transaction_coordinator.py  all transactional ids: owners, limits, expiry, decisions; snapshots, written to the log in pieces
    markers.py                  the control record of each partition; the outcome of members whose control record is lost
    pages.py                    decisions split over several requests
    group_table.py              all groups: committed offsets by partition, owners, limits, expiry
    records.py                  the records of the log
    loading.py                  rebuilds the transactional ids by reading the log from its start

All modules are pure: messages in, decisions out. Requests and events are the protobuf messages of the wire and the log (proto/),
and are immutable once recorded. A decision changes no state; `TransactionCoordinator.apply` or `GroupTable.apply` does, for a
record that is in the log. The server enforces the order of durability: a member before its response, a commit before its markers,
the markers before the response, the end of members before the markers that void their data.
"""
