"""The embedded cluster: API server, controllers and kubelet on one machine."""
