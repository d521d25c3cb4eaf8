"""Tools for a data directory that no broker has open; the commands `doctor` and `dump-log` use them. They print nothing, so tests
judge results instead of text, and layers keep them from clients and from the server.

dump.py             the contents of the files, down to records
doctor.py           checks, and repairs at an operator's request (partition_check.py)
rebuild.py          rebuilds lost files from the logs
lost_markers.py     members whose markers are lost: how they ended, and an operator's decision
own_logs.py         the broker's own logs: their records as they are shown, and as a start reads them
"""
