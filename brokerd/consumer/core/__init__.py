"""The consumer's decisions, pure. No thread, no clock, no network.

assignment.py   assigned partitions: positions, pauses, where to begin
buffer.py       what was fetched and not handed over yet
in_order.py     which records in work are finished, and what may be committed
lanes.py        which records may be in work at the same time
message_ids.py  which messages were handled before
records.py      columns as records and as Arrow
turns.py        whose turn it is, of the records in work
"""
