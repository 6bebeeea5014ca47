"""Job controller: runs pods of batch/v1 Jobs until enough have succeeded, or too many failed.

``plan`` (pure) compares a Job with its pods. ``counting`` counts each ended pod once: a finalizer
keeps the pod until its result is in the status. ``pods`` builds pods, ``indexes`` reads and writes
completed indexes, ``types`` has the structs. Not acted on are ``podFailurePolicy``,
``successPolicy``, ``backoffLimitPerIndex`` and Jobs with another ``managedBy``.
"""
