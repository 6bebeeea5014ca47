"""Pod networking of the embedded cluster: addresses, names and service forwarding.

`interface` is what kubelets use. `bridge` implements it with a bridge and network namespaces
(root), `loopback` with a loopback address for each pod on the host's network (no root).
`addresses` has what both share. `dns` answers for the names of services and pods, and
`cluster_network` opens, updates and closes all of them, and forwards service addresses.
"""
