"""Groups: how far readers have got, by group id and partition.

    group_table.py  all groups: whom they belong to, limits, expiry, the state as a fold of the log
    decided.py      offsets that go with transactions, until the table has them
    records.py      the records of the log

All of it is pure: messages in, decisions out. A decision is a record of the log (proto/brokerd/wire/v1/group_log.proto), and
changes nothing; `GroupTable.apply` does, for a record that is in the log. Groups have no members yet: whoever commits last counts.
"""
