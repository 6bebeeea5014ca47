"""The master of one job: rendezvous, data shards, key-value store, commands and goodput.

It is a state machine with a write-ahead journal. A request that changes the state becomes a record;
the record is applied and written down, and only then is the request answered. The same records give
the same state, so a restarted master replays them and continues. No component depends on a running
master: agents continue to train, and repeat requests that were not answered.
"""
