"""One partition: decides what is appended, durable, readable and removable, keeps its log, and recovers it after a crash.

partition.py          the room: asks the core, moves bytes, reports, and wakes those that wait
core.py               the pure machine: events in, decisions out
  log_ends.py           the log's ends, and what holds readers back; which of them an event has moved
  flush_state.py        plans flushes, and notes what they made durable, snapshots among it
  producer_state.py     decides which sequences are accepted, and which repeat
  aborted_transactions.py  transactions that readers of committed records leave out
  leader_epochs.py      the offset where each leader epoch began
markers.py            control batches
unmarked.py           transactions whose markers may be lost to damage
flush_task.py         one flush, in a thread
truncation.py         cuts the log outside recovery
reader.py             from an offset to whole batches
look_up.py            bytes that a reader has left, and where the newest records begin (timestamps.py: look-ups by time)
recovery.py           recovers the log at a start (log_walk.py)
snapshots.py          producer state and epochs as files
log_state.py          the state that recovery finds, and entries about a partition in other files
"""
