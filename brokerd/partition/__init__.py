"""One partition: what is accepted, where it stands, what is durable, what may be forgotten, and what is found after a crash.

core.py               the pure machine: events in, decisions out
  log_ends.py           how far it may be read; which end an event has moved
  flush_state.py        what a flush has to do, and what its end means
  producer_state.py     which sequences are accepted
  open_transactions.py  what holds back the last stable offset
  leader_epochs.py      where each leader epoch began
  kept_snapshots.py     which snapshots are kept
  log_health.py         what stopped a log
retention_rules.py    what may be forgotten, asked of the core
partition_log.py      the shell: asks the core, moves bytes, reports (append_error.py, flush_task.py, truncation.py, markers.py)
partition_reader.py   what requests read (timestamps.py: look-ups by time)
recovery.py           after a crash (log_walk.py)
snapshots.py          producer state and epochs as files
entries.py            what other files of the data directory say of a partition
log_state.py          what recovery hands to the log, and what all logs of a directory share
"""
