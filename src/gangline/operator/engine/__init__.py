"""The engine: one reconcile pass observes a job, plans the writes, and applies them.

- ``controller``: the pass and its single status write;
- ``observe``, ``mutation_cache``: informers, completed by own writes that watches do not show yet;
- ``plan``: a pure function of the observation and the time, with ``slots``, ``status``,
  ``manifests``, ``owned_objects`` and ``adoption`` as its parts;
- ``apply``: sends the planned writes, limited and in order of urgency.

Imports ``policies``, ``metrics`` and ``model``; knows no job kind.
"""
