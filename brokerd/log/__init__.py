"""The ordered logs of a data directory, and nothing of the network. In the order of a batch's way:

partition_log.py   accept, stamp, write, flush, forget (flush_task.py, flusher.py)
producer_state.py  which sequences are accepted
segment.py         data file and sparse index (index.py, timestamps.py)
log_reader.py      from an offset to whole batches (batch_walk.py, damage.py)
log_manager.py     the directory: topics, retention, checkpoint, opening and closing (topic_store.py, node_state.py, checkpoint.py)
recovery.py        after a crash (scan.py, snapshots.py, leader_epochs.py)
files.py           the one seam to the file system (open_files.py, documents.py, names.py)
dump.py, doctor.py what is in there, for people (partition_check.py)
"""
