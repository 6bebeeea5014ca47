"""The state of the master as a pure state machine: records in, replies out.

``clock`` and ``goodput`` are values, ``records`` are the journal's entries, ``state`` is everything
that outlives the process, ``core`` applies a record to it. The same records give the same state;
the time is in the record. No I/O but the reading of clocks in ``clock``.
"""
