"""Pod workers: one task per pod that decides, starts and stops containers, and reports the status.

``actions`` (pure) computes what to start and stop from the pod's spec and its records.
``pod_worker`` carries it out with one ``container_worker`` per container; ``container_setup``
gathers what a container needs. ``pod_status`` (pure) builds the status, ``status_writer`` stores
it. ``pod_context`` and ``node_context`` are what workers share. The folder imports ``containers``,
``probes``, ``logs`` and ``volumes``, and none of them imports it.
"""
