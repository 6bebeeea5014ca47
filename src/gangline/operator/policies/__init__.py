"""Policies of a job's life, one per module: pure functions over the common form.

``restart`` and ``gang_restart`` decide what a failed pod means, ``backoff`` counts restarts and
delays replacements, ``replica_tracker`` names the pods of replicas, ``cleanup`` selects what a
finished job removes, ``pod_group`` builds the pod group. Imports only ``model``.
"""
