"""The audit log: who requested what, when, and with which result.

Order: ``events`` (the content of an entry), ``log_file`` (the file and its rotation), ``audit_log``
(the queue between requests and the file). May import: ``core``.
"""
