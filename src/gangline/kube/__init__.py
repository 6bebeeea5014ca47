"""Client of a Kubernetes API server, with informers, work queues and controllers on top."""
