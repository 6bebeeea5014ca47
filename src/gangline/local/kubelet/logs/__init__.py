"""Container logs on disk in the CRI format.

``writer`` writes and rotates, ``reader`` reads and follows, ``archive`` retains the logs of deleted
pods.
"""
