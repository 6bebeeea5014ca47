"""The SQL database of the history: SQLite, PostgreSQL, MariaDB and MySQL by SQLAlchemy Core.

``engine.open_store`` returns a ``Store``. In an event loop::

    store = open_store("sqlite:////var/lib/gangline/brain.db")
    store.add(facts_of(run))     # never waits; written by flush()
    similar = await store.query(lambda read: read.similar_runs(job, now_ms=now_ms))
    fence = await store.update(lambda write: write.lead(cluster, identity))
    await store.update(lambda write: write.begin_action(cluster, action, fence=fence))

``read`` and ``write`` have the same methods without a loop. ``errors`` is the tree of exceptions,
``reader`` what can be asked, ``writer`` what can be stored, ``deletion`` what
is deleted. Nothing outside of this package imports SQLAlchemy. Imports ``facts``, ``models`` and
``advisers``.
"""
