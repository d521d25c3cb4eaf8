"""Transactions: one for each version of a transactional id, with many members, of which one commit decides.

    model.py             the values: executions, members, commits, requests, events of the log
    transactional_id.py  one transactional id: the table of answers
    coordinator.py       all transactional ids: whom they belong to, limits, decisions
    known.py             what a coordinator knows: the fold of its log
    snapshot.py          all of it at one moment, in pieces for the log
    loading.py           the log, read from its start
    executions.py        signs of life, and which execution has gone without them for too long
    ended_members.py     members that ended, so that none begins a second time
    endings.py           how members ended whose markers a partition has lost
    advice.py            what to do about a version that cannot be written
    pages.py             decisions that come in several requests
    markers.py           which partitions get which control record
    log_records.py       events to the bytes of the transaction log and back

All of it is pure: events in, decisions out. What is decided changes nothing; `Coordinator.apply` does, for an event whose record
stands in the log. The order of what must be durable before what is the server's part: a member before its response, a commit before
its markers, the markers before the response, the end of members before the markers that void their data.
"""
