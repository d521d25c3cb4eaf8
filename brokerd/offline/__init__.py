"""Reads, checks and repairs data directories without a broker, for the commands `doctor` and `dump-log`. Functions return their
results and print nothing. Neither clients nor the server may import this package.

dump.py             prints any file, down to records; works beside a running broker
doctor.py           checks a data directory (partition_check.py: one partition), and repairs it at an operator's request
rebuild.py          rebuilds lost files from the logs
lost_markers.py     transaction members whose markers are lost: their outcome, or an operator's decision on it
coordinator_log.py  the coordinator's log, decoded for display and read as at start-up
"""
