"""Groups: how far readers have got, by group id and partition.

    model.py        the values: offsets, events of the log
    group.py        one group
    group_table.py  all groups: whom they belong to, limits, expiry, the state as a fold of the log
    decided.py      offsets that go with transactions, until the table has them
    log_records.py  events to the bytes of the log and back

All of it is pure: events in, decisions out. What is decided changes nothing; `GroupTable.apply` does, for an event whose record
stands in the log. Groups have no members yet: whoever commits last counts.
"""
