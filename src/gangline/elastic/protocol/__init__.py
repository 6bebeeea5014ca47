"""What agents, workers and the master of a job say to each other, and how it is kept private.

``messages`` are the words, ``seal`` makes them unreadable and unforgeable for strangers, ``frame``
cuts them out of a stream of bytes, ``server``, ``client`` and ``blocking`` carry them.
"""
