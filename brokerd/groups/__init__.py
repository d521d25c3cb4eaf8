"""Groups: committed offsets by group id and partition.

    group_table.py  all groups: owners, limits, expiry, state rebuilt from the log
    decided.py      offsets committed with transactions, until they are in the table
    records.py      the records of the log

All of it is pure: messages in, decisions out. A decision is a record for the log (proto/brokerd/wire/v1/group_log.proto) and
changes no state; `GroupTable.apply` does, for a record that is in the log. Groups have no members yet: the last commit wins.
"""
