"""The record batch format, shared by producer, broker and reader.

    header.py          the 96-byte header: fields, CRC, stamping
    arrow_metadata.py  rows, lengths and codec of an Arrow IPC message, without decoding a column
    schema.py          the columns of records, where each lies in the Arrow message, and their encoding as a payload
    batch.py           checks of a batch before an append; the rule that says whether the next batch in a log is whole
    control.py         control batches: encoding and decoding

`RecordBatch` is ours; Arrow's is always called `arrow_batch`. Nothing here does I/O or reads a clock.
"""
