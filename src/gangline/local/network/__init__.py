"""Pod networking of the embedded cluster: addresses, names and service forwarding.

`interface` is what kubelets use. `bridge` implements it with a bridge and network namespaces
(root), `loopback` with a loopback address for each pod on the host's network (no root).
`dns_server` answers for the names in `dns_zone`, `service_forwarder` serves service addresses, and
`updater` updates both from the API server. `cluster_network` opens and closes all of them.
"""

from gangline.local.network.interface import NetworkAttachment, PodNetwork

__all__ = ["NetworkAttachment", "PodNetwork"]
