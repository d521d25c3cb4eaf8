"""One partition: what is accepted, where it stands, what is durable, what may be forgotten, and what is found after a crash.

partition_log.py   append, flush, read, forget (flush_task.py, append_error.py)
producer_state.py  which sequences are accepted
leader_epochs.py   where each leader epoch began
snapshots.py       producer state and epochs as files (kept_snapshots.py: which are kept)
timestamps.py      look-ups by time
recovery.py        after a crash (log_walk.py)
entries.py         what other files of the data directory say of a partition
log_state.py       what recovery hands to the log, and what all logs of a directory share
"""
