"""Isolation of users from each other: seats, queues, and the thread of long computations.

The model is Kubernetes' API Priority and Fairness, with fixed levels. Order: ``priority_levels``
(who belongs where), ``fair_queues`` (seats), ``compute_lane`` (the thread), ``user_limits`` (open
streams and bodies), ``controller`` (all of them for one request). May import: ``core``.
"""
