"""Tools for a data directory that no broker has open; the command line's `doctor` and `dump-log` are made of these.

dump.py             what the files hold, down to records
doctor.py           what is wrong, and the repairs that an operator may ask for (partition_check.py)
rebuild.py          files that are lost, rebuilt from the logs
"""
