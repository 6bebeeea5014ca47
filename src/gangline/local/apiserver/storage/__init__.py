"""The state: objects in memory, recent events of each kind, and an append-only SQLite log.

Order: ``durable_files``, ``encryption``, ``state_file`` (its format), ``sqlite`` (the open file),
``watch_cache`` (objects and events of one kind), ``store`` (staged writes, group commit). Readers
only see committed writes. May import: ``core``.
"""
