"""Facts of a job for the Brain, and tuning from it.

``collector`` composes facts from heartbeats, ``publication`` decides when they are published,
``eviction_saves`` carries out requests to save, ``cluster`` and ``brain_client`` are the other
ends. The master never waits for any of them.
"""
