"""Client of a Kubernetes API server, with informers and controllers on top.

Order of the parts, from high to low; each imports only what is below it, and ``gangline.api``:

1. ``informers`` (list and watch into a local copy) and ``controller`` (work queue, reconcile loop,
   leader election, event recorder).
2. ``client``: typed verbs, exec, port forwarding.
3. ``http``: connections, TLS, retries, requests as plain data.
4. ``protobuf``: objects of built-in kinds from Kubernetes' protobuf encoding.
5. ``config``: kubeconfig and credentials.
6. ``metrics``, ``probes``, ``log_fields``, ``rate_limit``, ``errors``.
"""
