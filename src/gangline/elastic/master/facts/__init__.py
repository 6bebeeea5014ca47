"""Facts of a job for the Brain, and tuning from it.

``collector`` composes facts from heartbeats, ``publication`` decides when they are published and
relays requests to save, ``cluster`` and ``brain_client`` carry them. The master never waits for any
of them.
"""
