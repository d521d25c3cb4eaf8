"""Bytes of logs on disk: files, segments, and walking batches. No topic, no producer, no network.

files.py             the one seam to the file system (names.py)
open_files.py        the bound on files that are kept open, and patience where descriptors run out
checksummed_file.py  small files that are replaced whole (spare_files.py: also on a full disk)
segment.py           data file and sparse index (index.py)
scan.py              from batch to batch (segment_walk.py: through a whole segment, past damage)
damage.py            ranges that cannot be read (resync.py: where the log continues after one)
"""
