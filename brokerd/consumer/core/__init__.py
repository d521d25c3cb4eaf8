"""The consumer's decisions, pure. No thread, no clock, no network.

assignment.py   assigned partitions: positions, pauses, where to begin
buffer.py       records fetched and not handed over yet
schedule.py     records in work: lanes, duplicates, and what may be committed
message_ids.py  the window of handled message ids
records.py      columns as records and as Arrow
"""
