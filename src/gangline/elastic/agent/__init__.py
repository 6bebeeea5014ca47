"""The agent: one on each node; starts workers, sees their deaths at once, starts them again.

``decide`` and ``diagnosis`` are pure: which failure it was, what is to be done about it. ``group``
starts and stops the workers of one attempt, ``standby`` keeps spare interpreters warm, ``agent``
is the loop. Where worlds come from is behind ``world.Rendezvous``: one node needs nobody.
"""
