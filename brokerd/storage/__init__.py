"""Logs as bytes on disk: files, segments, and walks over batches. Independent of topics, producers and the network.

files.py             the interface to the file system (names.py: file names)
open_files.py        limits open segment files, and retries when file descriptors run out
checksummed_file.py  small files, replaced atomically (spare_files.py: on a full disk too)
refusals.py          whether the disk is refusing I/O
segment.py           a segment: data file and sparse index (segment_bounds.py: without its files)
scan.py              iterates over batch headers (segment_walk.py: a whole segment, past damage)
damage.py            damaged ranges (resync.py: where the log continues after one; holes.py: ranges that an operator accepted)
"""
