"""A data directory: its topics and partitions, what is written for all of them, opening and closing.

log_manager.py            the directory as a whole (partition_opening.py: each partition at a start)
topic_store.py            which topics there are (topic_changes.py: creating, growing, deleting; partition_directories.py)
checkpoint.py             what every partition is known to hold durably (checkpointing.py: when it is written)
node_state.py             who this node is, which epoch, how it was closed (epoch_slots.py; closing.py)
flusher.py                group commit: flushes on threads
retention.py              what all logs may forget (directory_time.py, believed_time.py: by which time)
steps.py                  work that changes state and waits for the disk in turns
"""
