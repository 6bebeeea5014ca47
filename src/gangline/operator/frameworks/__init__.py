"""Job kinds: one module or package for each.

A framework reads jobs of its kind into the common form (``job.TrainingJob``) and implements the
``Rules`` that only the kind knows. It knows no cluster, no cache and no other kind.
"""
