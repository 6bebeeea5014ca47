"""The embedded cluster: API server, controllers and kubelet on one machine.

Layers, from high to low: ``cluster`` (starts all parts in order), ``kubelets``, ``controllers`` and
``virtual_nodes``, ``settings`` and ``directory`` (files of a cluster), ``apiserver``, ``kubelet``,
``network``. Operator and scheduler are not imported: the caller passes them as functions.
"""

KUBERNETES_VERSION = "1.37.0"
"""The release whose stable API the server and the kubelet implement."""
