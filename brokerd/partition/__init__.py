"""One partition: its log, what may be appended, read and removed, what is durable, and recovery after a crash.

partition.py          shell: carries out the core's decisions on files, flushes in a thread, and wakes waiting operations
core.py               state machine without I/O: events in, decisions out. It imports no module that handles files:
  log_ends.py           log end, durable end, high watermark, last stable offset; what moved
  flush_state.py        plans flushes and tracks which data and snapshots are durable
  producer_state.py     checks sequences and detects duplicates; index of aborted transactions
  leader_epochs.py      start offset of each leader epoch
  log_state.py          stored values: snapshots, entries in the checkpoint and the clean-shutdown mark
markers.py            reads control batches; transactions whose markers may be lost to damage
cut.py                cuts of followers' logs
reader.py             reads whole batches from an offset
look_up.py            look-ups: by time, backlog, reach, newest records
recovery.py           recovers the log at startup (log_walk.py: scans the segments)
derived_files.py      files of snapshots and leader epochs
"""
