"""The SQL database of the history: SQLite, PostgreSQL, MariaDB and MySQL by SQLAlchemy Core.

``tables`` (the schema), ``dialect`` (upserts, retries, what differs between servers), ``engine``
(connections and migrations), then ``write``, ``read`` and ``retention``. Imports ``facts``.
"""
