"""One partition: its log, what may be appended, read and removed, what is durable, and recovery after a crash.

partition.py          shell: carries out the core's decisions on files, and wakes waiting operations
core.py               state machine without I/O: events in, decisions out
  log_ends.py           log end, durable end, high watermark, last stable offset; what moved
  flush_state.py        plans flushes and tracks which data and snapshots are durable
  producer_state.py     checks sequences and detects duplicates
  aborted_transactions.py  index of aborted transactions
  leader_epochs.py      start offset of each leader epoch
markers.py            control batches
unmarked.py           transactions whose markers may be lost to damage
flush_task.py         runs one flush in a thread
truncation.py         cuts the log outside recovery
reader.py             reads whole batches from an offset
look_up.py            look-ups in headers: backlog, reach, newest records (timestamps.py: look-ups by time)
recovery.py           recovers the log at startup (log_walk.py: scans the segments)
snapshots.py          snapshot files: producer state, leader epochs, aborted transactions
log_state.py          the recovered state, and entries in the checkpoint and the clean-shutdown mark
"""
