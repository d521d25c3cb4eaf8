"""A data directory: its topics and partitions, the files shared by all of them, opening and closing.

log_manager.py            the directory as a whole (partition_opening.py: each partition at a start)
partition_table.py        the partitions, by topic id and number
topic_store.py            the topics (topic_changes.py: create, grow, alter, delete; partition_directories.py)
checkpoint.py             what every partition is known to hold durably
node_state.py             ids, clean-shutdown mark (closing.py)
start_epoch.py            the epoch of this start
own_entries.py            the bytes of an entry of the broker's own logs
decided_members.py        an operator's decisions on members whose markers are lost
flusher.py                group commit: flushes on threads
retention.py              what all logs may forget (directory_time.py, log_time.py: by which time)
steps.py                  work that alternates between state changes and disk I/O
"""
