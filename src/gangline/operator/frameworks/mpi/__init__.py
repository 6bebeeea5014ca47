"""MPIJob: a launcher that starts processes in its workers by the exec channel of the API server.

``framework`` reads the job and shapes its pods, ``objects`` builds the launcher's ConfigMap and
RBAC objects. ``exec_client`` runs in launcher pods, never in the operator.
"""
