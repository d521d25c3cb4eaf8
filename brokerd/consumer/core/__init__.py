"""The consumer's decisions, pure. No thread, no clock, no network.

assignment.py   assigned partitions: positions, pauses, where to begin
buffer.py       records fetched and not handed over yet
records.py      columns as records and as Arrow
"""
