"""The secure channel between the processes of a job: TLS 1.3, keyed by the job's secret.

From low to high: ``job_secret``, ``certificates`` (what both ends derive from it),
``secure_channel`` (the protocol without I/O), then ``secure_stream`` for asyncio and
``secure_socket`` for blocking sockets. It imports nothing else of the protocol.
"""
