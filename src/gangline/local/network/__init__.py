"""Pod networking: addresses, names and service forwarding for the embedded cluster.

`contract` says what a kubelet may ask. `bridge` does it with a bridge and network namespaces (root),
`loopback` with one loopback address for each pod on the host's own network (everybody else). `dns`
and `forward` serve names and cluster addresses from what `tables` makes of services and endpoints.
"""

from gangline.local.network.contract import Attachment, PodNetwork

__all__ = ["Attachment", "PodNetwork"]
