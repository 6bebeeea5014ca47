"""Pod workers: one task per pod that decides, starts and stops containers, and reports the status.

``actions`` (pure) computes what to start and stop from the pod's spec and its records.
``pod_worker`` executes it with one ``container_worker`` per container. ``pod_status`` builds the
status and stores it. ``admission`` refuses pods that do not fit. ``pod_context`` is what workers
share. The folder imports ``containers``, ``probes``, ``logs`` and ``volumes``; none imports it.
"""
