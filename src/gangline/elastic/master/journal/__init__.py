"""Where the records of the master are stored: a file, or a ConfigMap.

``journal`` has the protocol and the file with its checksums and lock, ``cluster_journal`` the
ConfigMap and the Kubernetes events of the job.
"""
