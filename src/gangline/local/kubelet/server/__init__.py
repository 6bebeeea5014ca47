"""The kubelets' HTTP server: logs, exec, attach, port-forward and ``/stats/summary``.

``streaming`` speaks Kubernetes' WebSocket channels, ``stats_summary`` measures usage, ``server``
routes and authenticates. Only the API server is a client.
"""
