"""Facts of a job for the Brain, and tuning from it.

``collector`` composes facts from heartbeats, ``publisher`` decides when they are published,
``cluster`` and ``brain_client`` carry them. The master never waits for any of them.
"""
