"""The record batch format, shared by producer, broker and reader.

    header.py          the 96-byte header: fields, CRC, stamping
    arrow_metadata.py  rows, lengths and codec of an Arrow IPC message, without decoding a column
    schema.py          the columns of records, and where each lies in the Arrow message
    payload.py         columns to payload bytes and back
    batch.py           a record batch: build, check as the broker does, take out of what a broker sent
    whole.py           what a whole batch is, and which one comes next: the rule of all walks
    control.py         what a control batch says

Arrow's own unit is always called `arrow_batch` in this project; `RecordBatch` is ours. Nothing in this package does I/O or reads
a clock.
"""
