"""Pod networking: addresses, names and service forwarding for the embedded cluster.

`contract` says what a kubelet may ask. `bridge` does it with a bridge and network namespaces (as
root), `loopback` with a loopback address for each pod on the host's own network (everybody else).
`dns` answers for the names in `zone`, `forward` serves the addresses of services, and `publisher`
keeps both current from what the API server holds.
"""

from gangline.local.network.contract import Attachment, PodNetwork

__all__ = ["Attachment", "PodNetwork"]
