"""The ledger of data shards: a pure state machine of events and times.

From low to high: ``dataset`` (definitions, order of records), ``events`` (its input and replies),
``dataset_shards`` (one data set, and its serialized form), ``ledger`` (all data sets of a job). The
master journals the events. No I/O; imports nothing of the package.
"""
