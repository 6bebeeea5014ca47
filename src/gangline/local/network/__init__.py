"""Pod networking of the embedded cluster: addresses, names and service forwarding.

`contract` is the interface that kubelets use. `bridge` implements it with a bridge and network
namespaces (root), `loopback` with a loopback address for each pod on the host's network (no root).
`dns` answers for the names in `zone`, `forward` serves service addresses, and `publisher` updates
both from the API server.
"""

from gangline.local.network.interface import NetworkAttachment, PodNetwork

__all__ = ["NetworkAttachment", "PodNetwork"]
