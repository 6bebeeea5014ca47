"""Job kinds: one small module each, and the table of them.

A module says how its kind is read into the common form (``job.TrainingJob``) and implements the
``Rules`` that only the kind knows. It knows nothing of clusters, caches or other kinds.
"""
