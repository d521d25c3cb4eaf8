"""One partition: what is accepted, where it stands, what is durable, what may be forgotten, and what is found after a crash.

core.py            the machine: events in, decisions out; pure (log_ends.py: who is woken, log_health.py: what stopped it,
                   flush_state.py: what is durable, open_transactions.py, retention_rules.py: what may be forgotten)
partition_log.py   asks the core and moves the bytes: append, flush, read, forget (flush_task.py, append_error.py)
producer_state.py  which sequences are accepted
leader_epochs.py   where each leader epoch began
snapshots.py       producer state and epochs as files (kept_snapshots.py: which are kept)
timestamps.py      look-ups by time
recovery.py        after a crash (log_walk.py)
entries.py         what other files of the data directory say of a partition
log_state.py       what recovery hands to the log, and what all logs of a directory share
"""
