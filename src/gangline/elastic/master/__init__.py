"""The master of one job: rendezvous, shards, keys, commands and the account of time.

    state    all that must outlive the process        core     what each record does to it (pure)
    journal  how records survive                      service  who waits for which answer
    goodput  where the time went                      main     puts them together

A request that changes something becomes a record; the record is written down, then answered. The
same records make the same state, so a new master reads them and goes on. Nobody depends on the
master's being there: agents keep their world, and repeat what was not answered.
"""
