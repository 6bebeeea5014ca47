"""Pod networking of the embedded cluster: addresses, names and service forwarding.

`addresses` has what kubelets use (`PodNetwork`), and what its implementations share: `bridge` with
a bridge and network namespaces (root), `loopback` with a loopback address for each pod on the
host's network (no root). `dns` answers for the names of services and pods, and
`cluster_network` opens, updates and closes all of them, and forwards service addresses.
"""
