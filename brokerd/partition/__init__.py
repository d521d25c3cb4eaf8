"""One partition: decides what is appended, durable, readable and removable, keeps its log, and recovers it after a crash.

core.py               the pure machine: events in, decisions out
  log_ends.py           durable end, high watermark and the other ends; which of them an event has moved
  flush_state.py        plans flushes, and notes what they made durable
  producer_state.py     decides which sequences are accepted, and which repeat
  open_transactions.py  transactions that hold back the last stable offset (open_data.py: the data of one of them here)
  unmarked.py           transactions whose markers may be lost to damage
  aborted_transactions.py  transactions that readers of committed records leave out
  leader_epochs.py      the offset where each leader epoch began
  kept_snapshots.py     snapshots on the disk, and to be written
  log_health.py         the reason why a log has stopped
retention_rules.py    decides what may be removed
partition_log.py      the shell: asks the core, moves bytes, reports (append_error.py, flush_task.py, truncation.py, markers.py)
partition_reader.py   reads for requests (timestamps.py: look-ups by time; backlog.py: what a reader has left;
                      reach.py: how far bytes reach; newest.py: where the newest records begin)
recovery.py           recovers the log at a start (log_walk.py)
snapshots.py          producer state and epochs as files
entries.py            entries about a partition in other files of the data directory
log_state.py          the state that recovery hands to the log, and resources that all logs of a directory share
"""
