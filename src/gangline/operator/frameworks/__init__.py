"""Job kinds: one module or package for each.

A framework reads jobs of its kind into the common form (``model.job``) and implements the
``JobRules`` that only the kind knows. ``kubeflow`` is the part that kinds of that group share.
``main`` finds a kind's ``create_framework`` by the name in the table of kinds. A framework imports
``settings``, ``policies`` and ``model``; it knows no cluster, no cache and no other kind.
"""
