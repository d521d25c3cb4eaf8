"""One partition: appends to its log, reads, removal, durability, and recovery after a crash.

partition.py          shell: carries out the core's decisions on files, flushes in a thread, and wakes waiting operations
core.py               state machine without I/O: events in, decisions out. It imports no module that handles files:
  log_ends.py           log end, durable end, high watermark, last stable offset; what moved
  flush_state.py        plans flushes and tracks which data and snapshots are durable
  producer_state.py     checks sequences and detects duplicates; index of aborted transactions
  leader_epochs.py      start offset of each leader epoch
  log_state.py          stored values: snapshots, entries in the checkpoint and the clean-shutdown mark
markers.py            reads control batches; finds transactions that may have lost their markers to damage
cut.py                cuts followers' logs where they diverge from the leader's
reader.py             reads whole batches from an offset
look_up.py            look-ups: by time, backlog, reach, newest records
recovery.py           recovers the log at startup (log_walk.py: scans the segments)
derived_files.py      snapshot and leader-epochs files
"""
