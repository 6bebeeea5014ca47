"""The state of the master as a pure state machine: records in, replies out.

``goodput`` is the account of time, ``state`` is everything that outlives the process, with the
journal's records and the job's clock; ``core`` applies a record to it. The same records give the
same state; the time is in the record. No I/O but the reading of clocks.
"""
