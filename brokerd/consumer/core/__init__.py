"""The consumer's decisions, pure. No thread, no clock, no network.

assignment.py   assigned partitions: positions, pauses, where to begin
buffer.py       what was fetched and not handed over yet
schedule.py     records in work: turns, lanes, and what may be committed
message_ids.py  which messages were handled before
records.py      columns as records and as Arrow
"""
