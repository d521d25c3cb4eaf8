"""The producer: decisions that are pure, and one loop that carries them out. In the order of a record's way:

producer.py   what applications call
intake.py     topics, memory and partitions for what comes in; it runs in the sender's thread
core/         batches, sequences, retries, epochs: pure
rows/         Arrow columns: checked, split by partition, encoded
sender.py     the one loop, on a thread of its own (mailbox.py: how others have something done there;
              wakeup.py: what it sleeps on)
futures.py    what a caller holds of a record
lifecycle.py  producers that were not closed, at exit and after a fork
"""
