"""The kubelets' HTTP server: logs, exec, attach, port-forward and ``/stats/summary``.

``streaming`` speaks Kubernetes' WebSocket channels; ``server`` routes, authenticates and measures
usage. Only the API server is a client.
"""
