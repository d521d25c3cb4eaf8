"""Reads, checks and repairs data directories without a broker, for the commands `doctor` and `dump-log`. Functions return their
results and print nothing. Neither clients nor the server may import this package.

dump.py             describes any file, down to records; a broker may be running
doctor.py           checks a data directory (partition_check.py: one partition), and repairs it at an operator's request
rebuild.py          rebuilds lost files from the logs
lost_markers.py     transaction members whose markers are lost: their outcome, from a log or an operator
coordinator_log.py  reads the coordinator's log, for display and as the broker does at start-up
"""
