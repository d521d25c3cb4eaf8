"""Transactions: one for each version of a transactional id, with many members, of which one commit decides.

    transactional_id.py  one transactional id: the table of answers
    coordinator.py       all transactional ids: the fold of the log, whom they belong to, limits, time, decisions
    markers.py           which partitions get which control record, and how members ended whose control record is lost
    pages.py             decisions that come in several requests
    records.py           the records of the transaction log
    snapshot.py          all that is known at one moment, in pieces for the log
    loading.py           the log, read from its start

All of it is pure: messages in, decisions out. Requests, events and what is kept of them are the messages of the wire and the log
(proto/); none is changed once it is recorded. What is decided changes nothing; `Coordinator.apply` does, for an event whose record
is in the log. The order of what must be durable before what is the server's part: a member before its response, a commit before
its markers, the markers before the response, the end of members before the markers that void their data.
"""
