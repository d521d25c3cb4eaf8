"""A data directory: its topics and partitions, their shared files, startup and shutdown.

log_manager.py            the directory as a whole (partition_opening.py: opens each partition at startup)
partition_table.py        the partitions, by topic id and number
topic_store.py            the topics (topic_changes.py: create, grow, alter, delete; partition_directories.py)
replica_changes.py        changes roles and copies of partitions as the cluster requires
checkpoint.py             each partition's recovery point, durable end, log start and leader epoch
node_state.py             ids, node epoch, clean-shutdown mark, decisions on members whose markers are lost
flusher.py                group commit: flushes in threads
retention.py              retention over all logs (log_time.py: its clock)
"""
