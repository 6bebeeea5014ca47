"""Backups of a cluster: one archive with its state, credentials and settings.

Order: ``archive`` (the format), then ``backup`` and ``restore``. Persistent volumes and logs of
pods are not part of a backup.
"""
